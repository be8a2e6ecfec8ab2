"""rattle frontier: methods over their trade-off settings, compared at equal clean accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rattle.cli.console import Console, print_table, say
from rattle.cli.options import check_attacks, check_exists, given, parse, usage_first
from rattle.cli.sweep import split_own
from rattle.cli.train import refuse_unsaid, with_options
from rattle.errors import RattleError
from rattle.recipes.names import check_recipe
from rattle.recipes.schema import parse_number
from rattle.training.slurm import Slurm, submit

if TYPE_CHECKING:
    from rattle.analysis.frontier import Frontier

USAGE = """usage: rattle frontier RECIPE [RECIPE ...] [--seeds 0 1 2] [--points 5] [options]
       rattle frontier --between RUN RUN [--points 7] [--save 0.4] [options]

Train each method over its trade-off setting, attack every run, and compare the methods with the first one at equal
clean accuracy. Options that are not listed here are settings of the recipes, such as --epochs 50. Finished runs are
not trained again; more --points or --seeds extend a frontier.

  rattle frontier digits-linf-cnn-trades digits-linf-cnn-trades-2nd --seeds 0 1 --attacks pgd20 autoattack --n 200
  rattle frontier digits-linf-cnn-trades --setting objective.inv_lambda=1,3,9 --clean-at-least 95
  rattle frontier --between runs/plain runs/robust --save 0.4
"""


@dataclass(frozen=True)
class Options:
    """Options of the frontier itself; all others are settings of the recipes."""

    seeds: tuple[int, ...] = (0, 1, 2)
    points: int | None = None  # values of the trade-off setting, 5 when not given; of --between, 7
    setting: tuple[str, ...] = ()  # another setting with its values: objective.taylor.eta=0.1,0.2,0.4
    attacks: tuple[str, ...] = ("pgd20", "autoattack")
    n: int | None = 1000  # a sample of n test images, classes in proportion
    clean_at_least: float | None = None  # choose the most robust point with this clean accuracy, %, held-out images
    robust_at_least: float | None = None  # choose the most accurate point with this robust accuracy
    between: tuple[str, ...] = ()  # two runs: the straight line of weights between them, without training
    save: float | None = None  # of --between: write the model at this place, from 0 to 1, as a run
    jobs: int = 1  # runs trained at once, and processes that attack, with launcher local
    launcher: Literal["local", "slurm"] = "local"
    out: str = "runs/frontier"  # folder of the runs, frontier.json and the figure
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a YAML file or a run names as its model
    slurm: Slurm = field(default_factory=Slurm)


def main(args: list[str]) -> None:
    usage_first(args, USAGE, Options, "frontier RECIPE")
    texts = []
    while len(texts) < len(args) and not args[len(texts)].startswith("--"):
        texts.append(args[len(texts)])
    own, settings = split_own(args[len(texts) :], Options)
    rest = [word for name, words in settings for word in (name, *words)]
    options = parse(Options, own, "frontier RECIPE")
    check_attacks(options.attacks)
    for text in texts:
        check_recipe(text)
    found = between(options, texts, rest) if options.between else trained(options, texts, rest, args)
    if found is not None:
        show_frontier(found, options)


def between(options: Options, texts: list[str], rest: list[str]) -> Frontier:
    if len(options.between) != 2 or texts or rest:
        raise RattleError(
            "--between takes two runs, no recipe and no settings: rattle frontier --between runs/a runs/b"
        )
    check_exists(*options.between)
    from rattle.analysis.weight_line import frontier_between

    return frontier_between(
        *options.between,
        points=7 if options.points is None else options.points,
        attacks=options.attacks,
        n=options.n,
        out=options.out,
        save=options.save,
        trust_code=options.trust_code,
        console=Console(),
    )


def trained(options: Options, texts: list[str], rest: list[str], args: list[str]) -> Frontier | None:
    if not texts:
        raise RattleError("name one recipe or more, the baseline first, or two runs with --between")
    if options.save is not None:
        raise RattleError("--save goes with --between")
    from rattle.analysis.trace import frontier, jobs_of, plan_frontier
    from rattle.recipes.catalog import resolve
    from rattle.training.sweep import check_jobs, pending

    check_jobs(options.jobs)
    recipes = [with_options(resolve(text), rest, f"frontier {text}")[1] for text in texts]
    refuse_unsaid([] if options.trust_code else recipes, args)
    points = 5 if options.points is None else options.points
    settings, console, out = parse_settings(options.setting), Console(), Path(options.out)
    if options.launcher == "slurm":
        jobs = jobs_of(plan_frontier(recipes, options.seeds, points, settings, out))
        left = pending(jobs, console)
        if left:
            submit(left, options.slurm, out, console, Console)
            say(
                f"{len(left)} of {len(jobs)} runs are in the queue; the same command again attacks them when they are "
                "done"
            )
            return None
    return frontier(
        recipes,
        seeds=options.seeds,
        points=points,
        settings=settings,
        attacks=options.attacks,
        n=options.n,
        out=out,
        jobs=options.jobs,
        console=console,
    )


def parse_settings(texts: tuple[str, ...]) -> dict[str, list[float]]:
    """objective.taylor.eta=0.1,0.2 as a name and numbers."""
    found = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign:
            raise RattleError(f"--setting takes NAME=VALUE,VALUE, such as objective.inv_lambda=1,3,9, got {text!r}")
        found[name.replace("-", "_")] = [parse_number(value, name) for value in values.split(",")]
    return found


def show_frontier(found: Frontier, options: Options) -> None:
    columns, rows = found.rows()
    print_table(columns, rows, title=f"{found.threat}, accuracy in % [95 % interval]", left=2)
    for note in found.notes:
        say(note)
    say(f"frontier.json, frontier.png and frontier.svg are in {options.out}")
    if len(found.curves) > 1:
        gaps = []
        for gap in found.compare():
            for value, difference, interval in gap.at:
                points = f"{100 * difference:+.1f} {interval.percent('+.1f')}"
                gaps.append([gap.method, f"{value:g}", gap.attack, points])
        title = f"robust accuracy less that of {found.methods[0]} at equal clean accuracy, points"
        print_table(["method", "setting", "attack", "difference"], gaps, title=title, left=3)
        say(found.summary())
    if bounds := given(options, "clean_at_least", "robust_at_least"):
        say(str(found.choose(**bounds)))
    if options.save is not None:
        say(f"the model at {options.save:g} is the run {Path(options.out) / f'between-{options.save:g}'}")
