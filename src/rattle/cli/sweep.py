"""rattle sweep: a recipe over a grid of settings and seeds, on this machine or through SLURM."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse
from rattle.cli.train import recipe_with, refuse_unsaid
from rattle.errors import RattleError
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.report.grid import grid_rows, grid_settings
from rattle.training.slurm import Slurm, submit
from rattle.training.sweep import Job, check_jobs, combinations, pending, plan, run_local

USAGE = """usage: rattle sweep RECIPE [--OPTION VALUE VALUE ...] [--seeds 0 1 2] [options]

Every setting of the recipe (`rattle train RECIPE --help` lists them) may be given several values: the sweep is the
grid over all of them. A setting that is itself a list is given once for each value; a switch takes true and false.
Given again, the same command skips the runs that are finished and continues those that are not.
"""
Point = tuple[dict[str, Any], Recipe]  # what tells a point of the grid apart, and its recipe
OWN = ("--seeds", "--trust-code", "--launcher", "--jobs", "--out", "--slurm.")


@dataclass(frozen=True)
class Options:
    """Options of the sweep itself; all others are settings of the recipe."""

    seeds: tuple[int, ...] = ()  # one run for each; the recipe's own seed when not given
    launcher: Literal["local", "slurm"] = "local"
    jobs: int = 1  # runs at once, with launcher local
    out: str = ""  # folder of the run folders; sweeps/RECIPE when not given
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a YAML file or a run names as its model
    slurm: Slurm = field(default_factory=Slurm)


def read(args: list[str]) -> tuple[Options, list[Point], list[Job], Path]:
    """The options, the points of the grid, the run of each, and the folder of the runs."""
    if args[0].startswith("-"):
        raise RattleError(f"the recipe comes first: rattle sweep RECIPE {args[0]} ...")
    given = occurrences(args[1:])
    options = parse(Options, [word for name, words in given if own(name) for word in (name, *words)], "sweep RECIPE")
    check_jobs(options.jobs)
    points = grid(resolve(args[0]), args[0], [g for g in given if not own(g[0])], options.seeds)
    refuse_unsaid([] if options.trust_code else [recipe for _, recipe in points], args)
    out = Path(options.out or f"sweeps/{Path(args[0]).stem}")
    return options, points, plan(points, out, trust_code=options.trust_code), out


def main(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        if args:
            parse(Options, ["--help"], "sweep RECIPE")
        return
    options, points, jobs, out = read(args)
    console = Console()
    left = pending(jobs, console)
    if options.launcher == "slurm":
        submit(left, options.slurm, out, console, Console)
        say(f"{len(left)} of {len(jobs)} runs are in the queue; the same command again says how they do")
        return
    failed = run_local(left, at_once=options.jobs, out=out, console=console)
    if failed:
        each = "; ".join(f"{name}: {words}" for name, words in failed.items())
        raise RattleError(f"{len(failed)} of {len(jobs)} runs failed, the same command again goes on with them: {each}")
    ready = sum(job.state == "finished" for job in jobs)
    say(f"{ready} of {len(jobs)} runs are finished in {out}")
    conclude([(point, job.folder) for (point, _), job in zip(points, jobs, strict=True)], jobs[0].recipe, out)


def conclude(points: list[tuple[dict[str, Any], Path]], recipe: Recipe, out: Path) -> None:
    """The table of the grid, the best setting on the held-out images, and what to do next."""
    settings = grid_settings(points)
    if not settings:
        print("no run was evaluated on held-out images (data.val-size 0): nothing to choose by")
        return
    held_out = f"{recipe.data.val_size} held-out images" if recipe.data.val_size else "the held-out images"
    columns, rows = grid_rows(settings)
    print_table(columns, rows, title=f"best checkpoints on {held_out}, in %, best first")
    best, *others = settings
    if others:
        ahead = 100 * (best.robust.mean - others[0].robust.mean)
        say(f"best on {held_out}: {best.label}, {ahead:.1f} points robust above {others[0].label}")
        print("(it was chosen by these figures: measure it on test images before you quote it)")
    say(f"\n  rattle evaluate {best.folders[0]} --attacks autoattack --n 1000")
    say(f"  rattle report {out}/*/ --out {out / 'report.html'}")


def own(name: str) -> bool:
    return name.split("=")[0] in OWN or name.startswith("--slurm.")


def occurrences(args: list[str]) -> list[tuple[str, list[str]]]:
    """Options in their order, each with the words that follow it."""
    found: list[tuple[str, list[str]]] = []
    for word in args:
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            found.append((name, [value] if sign else []))
        elif not found:
            raise RattleError(f"do not know what {word!r} is the value of")
        else:
            found[-1][1].append(word)
    return found


def grid(recipe: Recipe, text: str, given: list[tuple[str, list[str]]], seeds: tuple[int, ...]) -> list[Point]:
    """Every point of the grid, and its recipe; a setting that cannot be is refused before anything runs."""
    choices: dict[str, list[tuple[str, list[str]]]] = {}
    for name, words in given:
        lists = is_list(recipe, name)
        values = [words] if lists or len(words) < 2 else [[word] for word in words]
        for value in values:
            choices.setdefault(name, []).append((" ".join(value), switch(name, value)))
    if seeds:
        choices["--seed"] = [(str(seed), ["--seed", str(seed)]) for seed in seeds]
    points = []
    for point in combinations(choices):
        words = [word for _, argument in point.values() for word in argument]
        label = {name.removeprefix("--"): text for name, (text, _) in point.items() if len(choices[name]) > 1}
        if seeds:
            label["seed"] = point["--seed"][0]
        points.append((label, recipe_with(recipe, text, words, "sweep")))
    return points


def switch(name: str, value: list[str]) -> list[str]:
    """true and false become --name and --no-name."""
    if [word.lower() for word in value] in (["true"], ["false"]):
        *front, last = name.removeprefix("--").split(".")
        return ["--" + ".".join([*front, last if value[0].lower() == "true" else f"no-{last}"])]
    return [name, *value]


def is_list(recipe: Recipe, name: str) -> bool:
    """Does a setting hold a tuple?"""
    value: Any = recipe
    for part in name.removeprefix("--").replace("-", "_").split("."):
        value = getattr(value, part, None)
    return isinstance(value, (tuple, list))
