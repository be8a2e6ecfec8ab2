"""Time to accuracy: a `-fast` recipe against the paper's schedule, same network and data, over seeds.

    OMP_NUM_THREADS=1 python -m reproduction.time_to_accuracy --method trades-2nd --seeds 0 1 2

Trains both on the embedded digits, evaluates the best checkpoint of each with PGD-20 on the whole test set, and counts
this process's processor seconds with one thread, which a busy machine does not stretch. What exists is not run again.
`--tune` compares batches and decays of the fast recipe instead, on held-out training images and seeds of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from rattle.attacks.registry import get_attack
from rattle.evaluation.evaluate import evaluate
from rattle.recipes.catalog import get_recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.load import load
from rattle.runs.source import environment
from rattle.stats import summarise
from rattle.training.loop import fit
from rattle.weights import EMA

TUNING_SEEDS = (10, 11, 12)  # none of those that results are reported for


def measured(name: str, seed: int, folder: Path) -> dict[str, float]:
    """Processor and wall seconds of training, clean and PGD-20 accuracy in percent."""
    stored = folder / "time-to-accuracy.json"
    if stored.exists():
        return json.loads(stored.read_text())
    recipe = replace(get_recipe(name), seed=seed)
    begun, begun_wall = time.process_time(), time.perf_counter()
    run = fit(recipe, folder, overwrite=True)
    row = {"processor_seconds": time.process_time() - begun, "wall_seconds": time.perf_counter() - begun_wall}
    test = recipe.data.load().test
    attack = {"pgd20": get_attack("pgd20", recipe.attack.threat)}
    result = evaluate(load(run.checkpoint("best")), test.x, test.y, attack)
    row |= {"clean": 100 * result.clean_accuracy, "pgd20": 100 * result.robust_accuracy}
    stored.write_text(json.dumps(row))
    return row


def tune(name: str, out: Path) -> dict[str, float]:
    """The best robust accuracy on the held-out images, in percent, a mean over seeds, for each batch and decay."""
    found = {}
    for batch in (32, 48, 64):
        for decay in (0.97, 0.98, 0.99):
            scores = []
            for seed in TUNING_SEEDS:
                recipe = replace(get_recipe(name), seed=seed, batch_size=batch, average=EMA(decay=decay))
                run = fit(recipe, out / f"batch{batch}-decay{decay}-seed{seed}", overwrite=True)
                scores.append(100 * read_checkpoint(run.checkpoint("best")).progress["best"])
            found[f"batch {batch}, decay {decay}"] = summarise(scores).mean
            print(f"batch {batch}, decay {decay}: {scores}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--method", default="trades-2nd")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/time-to-accuracy"))
    parser.add_argument("--results", type=Path, default=Path("reproduction/results/time-to-accuracy.json"))
    parser.add_argument("--tune", action="store_true", help="compare settings of the fast recipe")
    options = parser.parse_args()
    torch.set_num_threads(1)
    paper = f"digits-linf-cnn-{options.method}"
    if options.tune:
        tuning = {"seeds": TUNING_SEEDS, "val_robust": tune(f"{paper}-fast", options.out)}
        options.results.with_name("fast-tuning.json").write_text(json.dumps(tuning, indent=1) + "\n")
        return
    rows: dict[str, list[dict[str, float]]] = {paper: [], f"{paper}-fast": []}
    for seed in options.seeds:
        for name, found in rows.items():
            found.append(measured(name, seed, options.out / f"{name}-seed{seed}"))
            print(name, seed, found[-1], flush=True)
    means = {
        name: {key: summarise([row[key] for row in found]).mean for key in found[0]} for name, found in rows.items()
    }
    usual, quick = means.values()
    fast = {
        "time_ratio": quick["processor_seconds"] / usual["processor_seconds"],
        "pgd20_points": quick["pgd20"] - usual["pgd20"],
    }
    for name, mean in means.items():
        print(f"{name:40}", "  ".join(f"{key} {value:.1f}" for key, value in mean.items()))
    print(f"time {fast['time_ratio']:.2f} of the paper's schedule, PGD-20 {fast['pgd20_points']:+.2f} points")
    whole = {"machine": environment(), "seeds": options.seeds, "rows": rows, "means": means, "fast": fast}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
