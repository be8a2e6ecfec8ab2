"""At equal clean accuracy, is any method above TRADES? Frontiers over 1/lambda on CIFAR-10.

    python -m reproduction.trade_off cifar10.npz            # trains and attacks what is missing
    python -m reproduction.trade_off cifar10.npz --gather   # writes results/trade-off.json
    python -m reproduction.trade_off --report               # the figure and the tables of what was gathered

The regime and the runs at 1/lambda 6 are those of randomized_weights.py; the protocol, fixed before the first run, is
reproduction/studies/trade-off.md. A killed run resumes, several processes share the work.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rattle.analysis.frontier import Curve, Frontier, Point
from rattle.errors import RattleError
from rattle.evaluation.samples import Sample
from rattle.recipes.recipe import Recipe
from rattle.report.writers import markdown_table
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from reproduction import randomized_weights
from reproduction.study import AUTOATTACK_IMAGES, TEST_IMAGES, attacked, command, gathered, packed, train, unpacked

# (variant, 1/lambda) in the order of training; 6 was trained before. The paper's question comes first.
POINTS = (
    *(("trades", 4), ("head 0.2", 4), ("sampled filter 0.05", 4)),
    *(("trades", 3), ("head 0.2", 9), ("trades", 2)),
    *(("smoothing 0.2", 4), ("awp", 4), ("smoothing 0.2", 9), ("awp", 3)),
    *(("head 0.2", 3), ("smoothing 0.2", 3), ("trades", 9), ("awp", 9)),
    *(("sampled filter 0.05", 3), ("sampled filter 0.05", 9)),
)
TITLES = {
    "trades": "TRADES",
    "head 0.2": "TRADES + 1st + 2nd",
    "smoothing 0.2": "soft labels",
    "awp": "TRADES-AWP",
    "sampled filter 0.05": "sampled",
}
SEEDS = randomized_weights.FRESH_SEEDS
FIRST = SEEDS[:3]  # of every point before any point gets the other two
Job = tuple[str, float, int]  # variant, 1/lambda, seed
FlagsAt = Mapping[float, Mapping[int, Mapping[str, str]]]  # value of the setting -> seed -> attack -> packed flags
RESULTS = Path(__file__).parent / "results" / "trade-off.json"
KEY = ("variant", "value", "seed")  # of a run
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "trade-off.png"
ATTACKS = ("pgd20", "cw20", "autoattack")


def name_of(variant: str, value: float, seed: int) -> str:
    return f"{randomized_weights.slug(variant)}-at-{value:g}-seed{seed}"


def recipe_of(variant: str, value: float, seed: int, data: str) -> Recipe:
    recipe = randomized_weights.recipe_of(variant, seed, data)
    objective = replace(recipe.objective, inv_lambda=value)  # type: ignore[call-arg]
    return replace(recipe, name=f"{recipe.name}-at-{value:g}", objective=objective)


def folder_of(job: Job, out: Path) -> Path:
    return out / name_of(*job)


def measure(job: Job, options: argparse.Namespace) -> None:
    measure_last(job, recipe_of(*job, str(options.data)), folder_of(job, options.out))


def measure_last(job: Job, recipe: Recipe, folder: Path) -> None:
    """Train one run, attack its last checkpoint, and keep what was found."""
    found = of_last(recipe, folder)
    write_atomically(folder / "found.json", json.dumps(found | dict(zip(KEY, job, strict=True))).encode())
    print(folder.name, {name: found[name] for name in ("clean", *ATTACKS)}, flush=True)


def of_last(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Train a run, which may be there in part, and attack its last checkpoint."""
    start = time.process_time()
    run = train(recipe, folder)
    test = recipe.data.load().test[torch.arange(TEST_IMAGES)]
    found = attacked(load(run.checkpoint("last")), test, folder / "results-last")
    return found | {"cpu_seconds": time.process_time() - start}


def jobs(out: Path) -> list[Job]:
    """The runs that are missing: three seeds of every point, then the other two."""
    done = {(run["variant"], run["value"], run["seed"]) for run in gathered(RESULTS, out, KEY)["runs"]}
    left = []
    for seeds in (FIRST, SEEDS[3:]):
        for variant, value in POINTS:
            left += [(variant, value, seed) for seed in seeds if (variant, value, seed) not in done]
    return left


def frontier() -> Frontier:
    """The gathered runs, with those at 6 of randomized-weights.json, over the seeds that all points have.

    A point with fewer than the first three seeds is left out, and a method with one point alone.
    """
    flags: dict[str, dict[float, dict[int, dict[str, str]]]] = {}
    for run in json.loads(RESULTS.read_text())["runs"]:
        flags.setdefault(run["variant"], {}).setdefault(run["value"], {})[run["seed"]] = run["flags"]
    for variant in TITLES:
        points = flags.setdefault(variant, {}) | {6: flags_at_six(variant)}
        flags[variant] = {value: points[value] for value in sorted(points) if points[value].keys() >= {*FIRST}}
    shown = [variant for variant in TITLES if len(flags[variant]) > 1]
    if shown[:1] != [next(iter(TITLES))]:
        raise RattleError("TRADES has no second point with three seeds yet: train the runs that are missing")
    seeds = sorted(set.intersection(*(set(each) for variant in shown for each in flags[variant].values())))
    curves = tuple(curve(TITLES[variant], "1/lambda", flags[variant], seeds) for variant in shown)
    return Frontier(curves=curves, threat="linf")


def curve(title: str, setting: str, flags: FlagsAt, seeds: Sequence[int]) -> Curve:
    """A method's points from stored flags, of these seeds."""
    points = []
    for value, by_seed in flags.items():
        clean, robust = {}, {}
        for attack in ATTACKS:
            n = AUTOATTACK_IMAGES if attack == "autoattack" else TEST_IMAGES
            before = tuple(tuple(unpacked(by_seed[seed]["clean"], TEST_IMAGES)[:n].tolist()) for seed in seeds)
            after = tuple(tuple(unpacked(by_seed[seed][attack], n).tolist()) for seed in seeds)
            clean[attack] = Sample(seeds=tuple(seeds), flags=before)
            robust[attack] = Sample(seeds=tuple(seeds), flags=after)
        points.append(Point(value=value, clean=clean, robust=robust))
    return Curve(method=title, setting=setting, points=tuple(points))


def flags_at_six(variant: str) -> dict[int, dict[str, str]]:
    """Seed -> flags of the last checkpoint at 1/lambda 6, from the earlier study, in the form of this one."""
    found = {}
    for run in json.loads(randomized_weights.RESULTS.read_text())["runs"]:
        if run["method"] == randomized_weights.slug(variant):
            stored = run["found"]["last"]["flags"].items()
            found[int(run["seed"])] = {
                name: packed(np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8)).tolist())
                for name, text in stored
            }
    return found


def tables(found: Frontier) -> str:
    """Every point, and every method beside the first."""
    first = found.curves[0]
    points = []
    for each in found.curves:
        for point in each.points:
            clean, _ = point.accuracy("pgd20")  # of all images
            accuracies = [clean, *(point.accuracy(attack)[1] for attack in ATTACKS)]
            seeds = len(point.clean["pgd20"].seeds)
            cells = [f"{100 * accuracy:.1f}" for accuracy in accuracies]
            points.append([each.method, f"{point.value:g}", str(seeds), *cells])
    gaps = []
    for equal in ("clean", "robust"):
        for gap in found.compare(equal=equal):
            covered = f"{100 * gap.low:.1f} to {100 * gap.high:.1f}"
            change = f"{100 * gap.mean:+.1f} {gap.interval.percent('+.1f')}"
            gaps.append([gap.method, gap.attack, f"{equal} {covered}", str(gap.images), change, gap.verdict])
    of_points = ["method", first.setting, "seeds", "clean", "PGD-20", "CW-20", "AutoAttack"]
    of_gaps = ["method", "attack", "equal, %", "n", f"less {first.method}, points", "verdict"]
    return "\n".join(
        [markdown_table(of_points, points, left=1), markdown_table(of_gaps, gaps, left=3), found.summary()]
    )


def write_report(found: Frontier, results: Path, figure: Path) -> None:
    """The tables beside the results, and the figure."""
    text = tables(found)
    write_atomically(results.with_suffix(".md"), (text + "\n").encode())
    print(text)
    found.plot().savefig(figure, dpi=110)


def report() -> None:
    write_report(frontier(), RESULTS, FIGURE)


def main() -> None:
    command(__doc__, RESULTS, KEY, missing=jobs, folder=folder_of, measure=measure, report=report)


if __name__ == "__main__":
    main()
