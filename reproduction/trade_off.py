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
from rattle.runs.source import environment
from rattle.training.loop import fit
from reproduction import randomized_weights
from reproduction.study import AUTOATTACK_IMAGES, TEST_IMAGES, attacked, packed, share_work, unpacked

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
RESULTS = Path(__file__).parent / "results" / "trade-off.json"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "trade-off.png"
ATTACKS = ("pgd20", "cw20", "autoattack")


def name_of(variant: str, value: float, seed: int) -> str:
    return f"{randomized_weights.slug(variant)}-at-{value:g}-seed{seed}"


def recipe_of(variant: str, value: float, seed: int, data: str) -> Recipe:
    recipe = randomized_weights.recipe_of(variant, seed, data)
    objective = replace(recipe.objective, inv_lambda=value)  # type: ignore[call-arg]
    return replace(recipe, name=f"{recipe.name}-at-{value:g}", objective=objective)


def measure(job: Job, options: argparse.Namespace) -> None:
    """Train one run and attack its last checkpoint."""
    variant, value, seed = job
    folder = options.out / name_of(variant, value, seed)
    found = of_last(recipe_of(variant, value, seed, str(options.data)), folder)
    write_atomically(
        folder / "found.json", json.dumps(found | {"variant": variant, "value": value, "seed": seed}).encode()
    )
    print(folder.name, {name: found[name] for name in ("clean", *ATTACKS)}, flush=True)


def of_last(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Train a run, which may be there in part, and attack its last checkpoint."""
    start = time.process_time()
    run = fit(recipe, folder, resume=(folder / "recipe.yaml").exists(), log="none")
    test = recipe.data.load().test[torch.arange(TEST_IMAGES)]
    found = attacked(load(run.checkpoint("last")), test, folder / "results-last")
    return found | {"cpu_seconds": time.process_time() - start}


def gathered(out: Path) -> dict[str, Any]:
    """All finished runs: those of the folder, and those of results/trade-off.json whose folders may be gone."""
    runs = {}
    if RESULTS.exists():
        for run in json.loads(RESULTS.read_text())["runs"]:
            runs[run["variant"], run["value"], run["seed"]] = run
    for path in out.glob("*/found.json"):
        run = json.loads(path.read_text())
        runs[run["variant"], run["value"], run["seed"]] = run
    return {"environment": environment(), "runs": [runs[key] for key in sorted(runs)]}


def jobs(out: Path) -> list[Job]:
    """The runs that are missing: three seeds of every point, then the other two."""
    done = {(run["variant"], run["value"], run["seed"]) for run in gathered(out)["runs"]}
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
    curves = []
    for variant in shown:
        points = []
        for value, by_seed in flags[variant].items():
            clean, robust = {}, {}
            for attack in ATTACKS:
                n = AUTOATTACK_IMAGES if attack == "autoattack" else TEST_IMAGES
                before = tuple(tuple(unpacked(by_seed[seed]["clean"], TEST_IMAGES)[:n].tolist()) for seed in seeds)
                after = tuple(tuple(unpacked(by_seed[seed][attack], n).tolist()) for seed in seeds)
                clean[attack] = Sample(seeds=tuple(seeds), flags=before)
                robust[attack] = Sample(seeds=tuple(seeds), flags=after)
            points.append(Point(value=value, clean=clean, robust=robust))
        curves.append(Curve(method=TITLES[variant], setting="1/lambda", points=tuple(points)))
    return Frontier(curves=tuple(curves), threat="linf")


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


def report() -> None:
    """Write the figure, and results/trade-off.md: every point, and every method beside TRADES."""
    found = frontier()
    points = []
    for curve in found.curves:
        for point in curve.points:
            clean, _ = point.accuracy("pgd20")  # of all images
            accuracies = [clean, *(point.accuracy(attack)[1] for attack in ATTACKS)]
            seeds = len(point.clean["pgd20"].seeds)
            cells = [f"{100 * accuracy:.1f}" for accuracy in accuracies]
            points.append([curve.method, f"{point.value:g}", str(seeds), *cells])
    gaps = []
    for equal in ("clean", "robust"):
        for gap in found.compare(equal=equal):
            covered = f"{100 * gap.low:.1f} to {100 * gap.high:.1f}"
            change = f"{100 * gap.mean:+.1f} {gap.interval.percent('+.1f')}"
            gaps.append([gap.method, gap.attack, f"{equal} {covered}", str(gap.images), change, gap.verdict])
    text = "\n".join(
        [
            markdown_table(["method", "1/lambda", "seeds", "clean", "PGD-20", "CW-20", "AutoAttack"], points, left=1),
            markdown_table(["method", "attack", "equal, %", "n", "less TRADES, points", "verdict"], gaps, left=3),
            found.summary(),
        ]
    )
    write_atomically(RESULTS.with_suffix(".md"), (text + "\n").encode())
    print(text)
    found.plot().savefig(FIGURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/trade-off"))
    parser.add_argument("--gather", action="store_true", help="write results/trade-off.json, train nothing")
    parser.add_argument("--report", action="store_true", help="compare what was gathered")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.report:
        report()
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.gather:
        RESULTS.write_text(json.dumps(gathered(options.out)) + "\n")
        return
    share_work(lambda: jobs(options.out), lambda job: options.out / name_of(*job), lambda job: measure(job, options))


if __name__ == "__main__":
    main()
