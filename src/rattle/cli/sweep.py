"""rattle sweep: a recipe over a grid of settings and seeds, on this machine or through SLURM."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from rattle.attacks.registry import check_attack
from rattle.cli.compare import print_tests, tests_of
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse, usage_first
from rattle.cli.table import read_models
from rattle.cli.train import refuse_unsaid, with_options
from rattle.errors import RattleError
from rattle.recipes.names import check_recipe
from rattle.report.compare import over_seeds
from rattle.report.grid import grid_rows
from rattle.report.tables import write_table
from rattle.runs.io import write_atomically
from rattle.training.slurm import Slurm, submit

if TYPE_CHECKING:
    from rattle.recipes.recipe import Recipe
    from rattle.training.sweep import Job

USAGE = """usage: rattle sweep RECIPE [--OPTION VALUE VALUE ...] [--seeds 0 1 2] [options]
       rattle sweep [DATASET-NORM-MODEL] --methods trades trades-2nd --seeds 0 1 2 --attacks pgd20 autoattack

Every setting of the recipe (`rattle train RECIPE --help` lists them) may be given several values: the sweep is the
grid over all of them. A setting that is itself a list is given once for each value; a switch takes true and false.
Given again, the same command skips the runs that are finished and continues those that are not.

--methods trains several methods on one dataset and network, digits-linf-cnn when not given. With --attacks the runs are
evaluated and compared over seeds: table.md and methods.png in the sweep's folder.
"""
GridPoint = tuple[dict[str, str], "Recipe"]  # the values of the settings that the grid varies, and the recipe
USUAL_BASE = "digits-linf-cnn"  # of --methods alone


@dataclass(frozen=True)
class Options:
    """Options of the sweep itself; all others are settings of the recipe."""

    methods: tuple[str, ...] = ()  # methods, such as trades trades-2nd, the baseline first
    seeds: tuple[int, ...] = ()  # one run for each; the recipe's own seed when not given
    attacks: tuple[str, ...] = ()  # evaluate every run by these attacks, and compare
    n: int | None = 1000  # on a sample of n test images, classes in proportion
    launcher: Literal["local", "slurm"] = "local"
    jobs: int = 1  # runs at once, with launcher local
    out: str = ""  # folder of the run folders; sweeps/RECIPE when not given
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a YAML file or a run names as its model
    slurm: Slurm = field(default_factory=Slurm)


def main(args: list[str]) -> None:
    usage_first(args, USAGE, Options, "sweep RECIPE")
    text, words = ("", args) if args[0].startswith("--") else (args[0], args[1:])
    own, settings = split_own(words, Options)
    options = parse(Options, own, "sweep RECIPE")
    if not text and not options.methods:
        raise RattleError("give a recipe, or --methods trades trades-2nd")
    names = [f"{text or USUAL_BASE}-{method}" for method in options.methods] or [text]
    for name in names:
        check_recipe(name)
    for name in options.attacks:
        check_attack(name)
    from rattle.recipes.catalog import resolve
    from rattle.training.sweep import check_jobs, pending, plan_sweep, refuse_failed, run_local

    check_jobs(options.jobs)
    points = []
    for method, name in zip(options.methods or [""], names, strict=True):
        for point, recipe in grid(resolve(name), name, settings, options.seeds):
            points.append(({"method": method} | point if len(names) > 1 else point, recipe))
    refuse_unsaid([] if options.trust_code else [recipe for _, recipe in points], args)
    out = Path(options.out or f"sweeps/{Path(text or USUAL_BASE).stem}")
    jobs = plan_sweep(points, out, trust_code=options.trust_code)
    console = Console()
    left = pending(jobs, console)
    if options.launcher == "slurm" and (left or not options.attacks):
        submit(left, options.slurm, out, console, Console)
        say(f"{len(left)} of {len(jobs)} runs are in the queue; the same command again prints their state")
        return
    failed = run_local(left, at_once=options.jobs, out=out, console=console)
    refuse_failed(failed, jobs)
    ready = sum(job.state == "finished" for job in jobs)
    say(f"{ready} of {len(jobs)} runs are finished in {out}")
    if not options.attacks:
        conclude([(point, job.folder) for (point, _), job in zip(points, jobs, strict=True)], out)
    elif ready == len(jobs):
        evaluate_jobs(jobs, options, out, console)


def evaluate_jobs(jobs: Sequence[Job], options: Options, out: Path, console: Console) -> None:
    """Attack every run on the same images; the table over seeds, each method against the first, and the figure."""
    from rattle.analysis.plots import save_figure
    from rattle.analysis.trace import attacked
    from rattle.report.methods_plot import methods_plot

    for job in jobs:
        attacked(job.run, jobs[0].recipe.attack.threat, options.attacks, options.n, options.jobs, console)
    runs = read_models([job.folder for job in jobs])
    table = write_table(over_seeds(runs), "markdown")
    write_atomically(out / "table.md", table.encode())
    say(table)
    tests, refused = tests_of(runs, runs[0])
    if tests:
        print_tests(tests, refused)
    save_figure(methods_plot(runs, options.attacks), out / "methods")
    say(f"table.md, methods.png and methods.svg are in {out}")
    say(f"  rattle report {out}/*/ --out {out / 'report.html'}")


def conclude(points: list[tuple[dict[str, str], Path]], out: Path) -> None:
    """The table of the grid by accuracy on held-out images, and what to do next."""
    found = grid_rows(points)
    if found is None:
        print("no run was evaluated on held-out images (data.val-size 0): nothing to choose by")
        return
    columns, rows, best = found
    print_table(columns, rows, title="best checkpoints on the held-out images, in %, best first")
    print("(the order is by these figures: measure the first on test images before you quote it)")
    say(f"\n  rattle evaluate {best} --attacks autoattack --n 1000")
    say(f"  rattle report {out}/*/ --out {out / 'report.html'}")


def split_own(args: list[str], options: type) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The words of a command's own options, and the other options, each with the words that follow it."""
    names = ["--" + field.name.replace("_", "-") for field in fields(options)]
    own, others = [], []
    for name, words in occurrences(args):
        if name.split(".")[0] in names:
            own += [name, *words]
        else:
            others.append((name, words))
    return own, others


def occurrences(args: list[str]) -> list[tuple[str, list[str]]]:
    """Options in their order, each with the words that follow it."""
    found: list[tuple[str, list[str]]] = []
    for word in args:
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            found.append((name, [value] if sign else []))
        elif found:
            found[-1][1].append(word)
        else:
            raise RattleError(f"{word!r} is the value of no option")
    return found


def grid(recipe: Recipe, text: str, given: list[tuple[str, list[str]]], seeds: tuple[int, ...]) -> list[GridPoint]:
    """Every point of the grid, and its recipe; a setting that cannot be is refused before anything runs."""
    choices: dict[str, list[list[str]]] = {}
    for name, words in given:
        if len(words) < 2 or is_list(recipe, name):
            choices.setdefault(name, []).append(words)
        else:
            choices.setdefault(name, []).extend([word] for word in words)
    if seeds:
        choices["--seed"] = [[str(seed)] for seed in seeds]
    points = []
    for values in itertools.product(*choices.values()):  # the last option runs fastest
        arguments, label = [], {}
        for name, words in zip(choices, values, strict=True):
            arguments += switch(recipe, name, words)
            if len(choices[name]) > 1 or (seeds and name == "--seed"):
                label[name.removeprefix("--")] = " ".join(words)
        points.append((label, with_options(recipe, arguments, f"sweep {text}")[1]))
    return points


def switch(recipe: Recipe, name: str, words: list[str]) -> list[str]:
    """An option with its values; true and false of a switch become --name and --no-name."""
    value = words[0].lower() if len(words) == 1 else ""
    if value not in ("true", "false"):
        return [name, *words]
    front, dot, last = name.removeprefix("--").rpartition(".")
    owner = at_path(recipe, front)
    if get_type_hints(type(owner)).get(last.replace("-", "_")) is not bool:
        return [name, value.capitalize()]  # a switch or something else
    return [name] if value == "true" else [f"--{front}{dot}no-{last}"]


def is_list(recipe: Recipe, name: str) -> bool:
    """Whether a setting holds a tuple."""
    return isinstance(at_path(recipe, name.removeprefix("--")), (tuple, list))


def at_path(recipe: Recipe, name: str) -> Any:
    """The setting called a.b.c; the recipe itself if the name is empty; None if there is none."""
    value: Any = recipe
    for part in name.replace("-", "_").split(".") if name else ():
        value = getattr(value, part, None)
    return value
