"""At equal clean accuracy, is any method above TRADES? Frontiers over 1/lambda on CIFAR-10.

    python -m reproduction.trade_off cifar10.npz            # trains and attacks what is missing
    python -m reproduction.trade_off cifar10.npz --gather   # writes results/trade-off.json
    python -m reproduction.trade_off --report               # the figure and the comparison of what was gathered

The regime and the runs at 1/lambda 6 are those of randomized_weights.py; the protocol, fixed before the first run, is
docs/studies/trade-off.md. A killed run resumes, several processes share the work.
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
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.lock import Held, locked
from rattle.runs.source import environment
from rattle.training.loop import fit
from reproduction import randomized_weights
from reproduction.plain_at import AUTOATTACK_IMAGES, TEST_IMAGES, WAIT, attacked, packed, unpacked

VALUES = {  # variant -> values of 1/lambda; 6 was trained before
    "trades": (2, 3, 4, 9),
    "head 0.2": (3, 4, 9),
    "smoothing 0.2": (3, 4, 9),
    "awp": (3, 4, 9),
    "sampled filter 0.05": (3, 4, 9),
}
TITLES = {
    "trades": "TRADES",
    "head 0.2": "TRADES + 1st + 2nd",
    "smoothing 0.2": "soft labels",
    "awp": "TRADES-AWP",
    "sampled filter 0.05": "sampled",
}
SEEDS = randomized_weights.FRESH_SEEDS
RESULTS = Path(__file__).parent / "results" / "trade-off.json"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "trade-off"
ATTACKS = ("pgd20", "cw20", "autoattack")


def name_of(variant: str, value: float, seed: int) -> str:
    return f"{randomized_weights.slug(variant)}-at-{value:g}-seed{seed}"


def recipe_of(variant: str, value: float, seed: int, data: str) -> Recipe:
    recipe = randomized_weights.recipe_of(variant, seed, data)
    objective = replace(recipe.objective, inv_lambda=value)  # type: ignore[call-arg]
    return replace(recipe, name=f"{recipe.name}-at-{value:g}", objective=objective)


def measure(variant: str, value: float, seed: int, options: argparse.Namespace) -> None:
    """Train one run and attack its last checkpoint."""
    folder = options.out / name_of(variant, value, seed)
    recipe = recipe_of(variant, value, seed, str(options.data))
    start = time.process_time()
    run = fit(recipe, folder, resume=(folder / "recipe.yaml").exists(), log="none")
    test = recipe.data.load().test[torch.arange(TEST_IMAGES)]
    found = attacked(load(run.checkpoint("last")), test, folder / "results-last")
    found |= {"variant": variant, "value": value, "seed": seed, "cpu_seconds": time.process_time() - start}
    write_atomically(folder / "found.json", json.dumps(found).encode())
    print(folder.name, {name: found[name] for name in ("clean", *ATTACKS)}, flush=True)


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


def jobs(out: Path) -> list[tuple[str, float, int]]:
    """The runs that are missing, whole seeds first."""
    done = {(run["variant"], run["value"], run["seed"]) for run in gathered(out)["runs"]}
    left = []
    for seed in SEEDS:
        for variant, values in VALUES.items():
            left += [(variant, value, seed) for value in values if (variant, value, seed) not in done]
    return left


def work(options: argparse.Namespace) -> None:
    """Take one missing run after the other; wait while other processes have all of them."""
    failed = set()
    while left := [job for job in jobs(options.out) if job not in failed]:
        for job in left:
            try:
                with locked(options.out / f"{name_of(*job)}.lock"):  # also held while the run is attacked
                    measure(*job, options)
                break
            except Held:
                continue
            except RattleError as refusal:  # it diverged
                failed.add(job)
                print(f"{name_of(*job)}: {refusal}", flush=True)
        else:
            time.sleep(WAIT)


def frontier() -> Frontier:
    """The gathered runs, with those at 6 of randomized-weights.json, over the seeds that every point has."""
    flags: dict[tuple[str, float], dict[int, dict[str, str]]] = {}
    for run in json.loads(RESULTS.read_text())["runs"]:
        flags.setdefault((run["variant"], run["value"]), {})[run["seed"]] = run["flags"]
    slugs = {randomized_weights.slug(variant): variant for variant in VALUES}
    for run in json.loads(randomized_weights.RESULTS.read_text())["runs"]:
        if run["method"] in slugs:
            stored = {name: packed_hex(text) for name, text in run["found"]["last"]["flags"].items()}
            flags.setdefault((slugs[run["method"]], 6), {})[int(run["seed"])] = stored
    seeds = sorted(set.intersection(*(set(each) for each in flags.values())))
    if not seeds:
        raise RattleError("no seed is complete: train the runs that are missing")
    curves = []
    for variant, title in TITLES.items():
        points = []
        for value in sorted(value for name, value in flags if name == variant):
            clean, robust = {}, {}
            for attack in ATTACKS:
                n = AUTOATTACK_IMAGES if attack == "autoattack" else TEST_IMAGES
                each = [flags[variant, value][seed] for seed in seeds]
                before = tuple(tuple(unpacked(found["clean"], TEST_IMAGES)[:n].tolist()) for found in each)
                after = tuple(tuple(unpacked(found[attack], n).tolist()) for found in each)
                clean[attack] = Sample(seeds=tuple(seeds), flags=before)
                robust[attack] = Sample(seeds=tuple(seeds), flags=after)
            points.append(Point(value=value, clean=clean, robust=robust))
        curves.append(Curve(method=title, setting="1/lambda", points=tuple(points)))
    return Frontier(curves=tuple(curves), threat="linf 8/255")


def packed_hex(text: str) -> str:
    """Flags of the earlier study in the form of this one."""
    return packed(np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8)).tolist())


def report() -> None:
    from rattle.analysis.plots import save
    from rattle.report.writers import markdown_table

    found = frontier()
    columns, rows = found.rows()
    print(markdown_table(columns, rows, left=2))
    print(found.summary())
    save(found.plot(), FIGURE)


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
    work(options)


if __name__ == "__main__":
    main()
