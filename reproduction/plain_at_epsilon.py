"""At equal clean accuracy, is AWP above plain AT? Frontiers over the training epsilon, where training overfits.

    python -m reproduction.plain_at_epsilon cifar10.npz            # trains and attacks what is missing
    python -m reproduction.plain_at_epsilon cifar10.npz --gather   # writes results/plain-at-epsilon.json
    python -m reproduction.plain_at_epsilon --report               # the figure and the tables of what was gathered

The regime and the runs at 8/255 are those of plain_at.py, last checkpoint; all runs are attacked at 8/255, whatever
they were trained at. The protocol is in reproduction/studies/trade-off.md. A killed run resumes, several processes
share the work.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from rattle.analysis.frontier import Frontier
from rattle.analysis.trace import EPSILON, with_value
from rattle.errors import RattleError
from rattle.recipes.recipe import Recipe
from reproduction import plain_at
from reproduction.study import command, gathered
from reproduction.trade_off import curve, measure_last, write_report

# (variant, training epsilon in 255ths) in the order of training; 8 was trained before.
POINTS = (("awp", 6), ("at", 12), ("awp", 4), ("at", 6))
TITLES = {"at": "AT", "awp": "AT-AWP"}
SEEDS = plain_at.SEEDS[:3]
INNER_STEPS = 5  # that plain_at.py chose
Job = tuple[str, int, int]  # variant, 255ths, seed
RESULTS = Path(__file__).parent / "results" / "plain-at-epsilon.json"
KEY = ("variant", "value", "seed")  # of a run
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "plain-at-epsilon.png"


def name_of(variant: str, value: int, seed: int) -> str:
    return f"{variant}-at-{value}-seed{seed}"


def recipe_of(variant: str, value: int, seed: int, data: str) -> Recipe:
    recipe = plain_at.recipe_of(variant, seed, INNER_STEPS, data)
    return replace(with_value(recipe, EPSILON, value / 255), name=f"{recipe.name}-at-{value}")


def folder_of(job: Job, out: Path) -> Path:
    return out / name_of(*job)


def measure(job: Job, options: argparse.Namespace) -> None:
    measure_last(job, recipe_of(*job, str(options.data)), folder_of(job, options.out))


def jobs(out: Path) -> list[Job]:
    """The runs that are missing, whole points first."""
    done = {(run["variant"], run["value"], run["seed"]) for run in gathered(RESULTS, out, KEY)["runs"]}
    return [(*point, seed) for point in POINTS for seed in SEEDS if (*point, seed) not in done]


def frontier() -> Frontier:
    """The gathered runs with those at 8 of plain-at.json; a point with fewer seeds is left out."""
    flags: dict[str, dict[float, dict[int, dict[str, str]]]] = {variant: {8: {}} for variant in TITLES}
    for run in json.loads(plain_at.RESULTS.read_text())["runs"]:
        if run["variant"] in TITLES:
            flags[run["variant"]][8][run["seed"]] = run["found"]["last"]["flags"]
    for run in json.loads(RESULTS.read_text())["runs"]:
        flags[run["variant"]].setdefault(run["value"], {})[run["seed"]] = run["flags"]
    curves = []
    for variant, title in TITLES.items():
        whole = {value: found for value, found in sorted(flags[variant].items()) if found.keys() >= {*SEEDS}}
        if len(whole) < 2:
            raise RattleError(
                f"{title} has no second point with {len(SEEDS)} seeds yet: train the runs that are missing"
            )
        curves.append(curve(title, "epsilon, 255ths", whole, SEEDS))
    return Frontier(curves=tuple(curves), threat="linf")


def report() -> None:
    write_report(frontier(), RESULTS, FIGURE)


def main() -> None:
    command(__doc__, RESULTS, KEY, missing=jobs, folder=folder_of, measure=measure, report=report)


if __name__ == "__main__":
    main()
