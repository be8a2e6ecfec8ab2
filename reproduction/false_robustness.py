"""How often training warns of false robustness: runs known to be sound, and runs known to be overfitted or masked.

    python -m reproduction.false_robustness RUNS [cifar10.npz]     # trains what is missing in the folder RUNS
    python -m reproduction.false_robustness RUNS --gather          # writes reproduction/results/false-robustness.json

FGSM-AT is N-FGSM without its noise. `saturated` is the network of `at` with logits 1000 times as large, measured once:
its cross-entropy has no gradient where an image is right. cifar10.npz is that of methods_study.py.
"""

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rattle.data.registry import Data
from rattle.inputs import is_correct, to_float
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import NO_AUGMENT, make_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import replace_at
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.training.loop import fit
from rattle.training.validation import SIGNS, VALIDATION_BATCH, false_robustness, signs

SEEDS = 5
OUT = Path(__file__).parent / "results" / "false-robustness.json"


@dataclass(frozen=True)
class Case:
    """A training, and whether it has to be warned of."""

    name: str
    method: str
    epsilon: float
    epochs: int
    must_warn: bool | None  # None: nobody knows, the rate is shown
    noise: float | None = None  # of n-fgsm
    images: int | None = None  # of CIFAR-10, at cnn-slim; None: the digits, at cnn


CASES = (
    Case("digits FGSM-AT 0.3", "n-fgsm", 0.3, 20, True, noise=0.0),
    Case("digits AT 0.2", "at", 0.2, 20, False),
    Case("digits TRADES 0.2", "trades", 0.2, 20, False),
    Case("digits N-FGSM 0.2", "n-fgsm", 0.2, 20, False),
    Case("digits FGSM-AT 0.2", "n-fgsm", 0.2, 20, None, noise=0.0),
    Case("digits AT 0.3", "at", 0.3, 20, False),
    Case("digits Free 0.3", "free", 0.3, 6, None),
    Case("CIFAR-10 AT 8/255", "at", 8 / 255, 6, False, images=2000),
    Case("CIFAR-10 TRADES 8/255", "trades", 8 / 255, 6, False, images=2000),
    Case("CIFAR-10 FGSM-AT 8/255", "n-fgsm", 8 / 255, 12, None, noise=0.0, images=2000),
)


class Saturated(nn.Module):
    """The same predictions from logits 1000 times as large."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        return 1000 * self.own(x)


def recipe_of(case: Case, seed: int, cifar10: str) -> Recipe:
    """The recipe of a case; the seed also chooses the held-out images."""
    changes: dict[str, Any] = {"epochs": case.epochs, "seed": seed, "threads": 1}
    data = Data(name="digits", val_size=250, augment=NO_AUGMENT, split_seed=seed)
    network: dict[str, Any] = {"model": "cnn", "width": 16, "batch_size": 32}
    if case.images is not None:
        data = Data(name=cifar10, train_size=case.images, val_size=250, split_seed=seed)
        network = {"model": "cnn-slim", "batch_size": 64}
    recipe = make_recipe(case.method, data=data, epsilon=case.epsilon, **network, **changes)
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, lr=0.05))
    return recipe if case.noise is None else replace_at(recipe, "objective.noise", case.noise)


def train(case: Case, seed: int, folder: Path, cifar10: str) -> None:
    """Train one run, unless it is there, and note its CPU time."""
    done = folder / "seconds.json"
    if done.exists():
        return
    begun = time.process_time()
    run = fit(recipe_of(case, seed, cifar10), folder, overwrite=True, log="none", quiet=True)
    seconds: dict[str, Any] = {"cpu": time.process_time() - begun}
    if case.name == "digits AT 0.2":
        seconds["saturated"] = saturated(run)
    write_atomically(done, json.dumps(seconds).encode())


def saturated(run: Run) -> dict[str, float]:
    """The signs of a run's network with saturated logits, on its held-out images."""
    recipe = Recipe.from_yaml(run.recipe.read_text())
    model, val = Saturated(load(run.checkpoint("last"))), recipe.data.load().val
    assert val is not None
    x, y = to_float(val.x[:VALIDATION_BATCH]), val.y[:VALIDATION_BATCH]
    right, attack = is_correct(model, x, y), recipe.validation_attack
    x, y = x[right], y[right]
    draws = ImageStreams(recipe.seed, torch.arange(len(y)))
    found = signs(model, attack, x, y, attack(model, x, y), draws)
    metrics = {f"val_sample_{name}": float(found[name].sum()) / min(len(val), VALIDATION_BATCH) for name in SIGNS}
    return {"val_sample": min(len(val), VALIDATION_BATCH), **metrics}


def gather(root: Path) -> dict[str, Any]:
    """By case: seeds, how many of them the thresholds of now warn of, and the signs after the last epoch."""
    rows, masked = {}, []
    for case in CASES:
        runs, cpu = [], 0.0
        for folder in sorted(root.glob(f"{slug(case.name)}-seed*")):
            if not (folder / "seconds.json").exists():
                continue
            seconds = json.loads((folder / "seconds.json").read_text())
            lines = [json.loads(line) for line in Run(folder).metrics.read_text().splitlines()]
            warned = [line["epoch"] for line in lines if false_robustness(line, 10)]
            last = {name.removeprefix("val_"): round(value, 4) for name, value in lines[-1].items() if "val_" in name}
            runs.append({"first_warning": warned[0] if warned else None, "epochs_warned": len(warned), "last": last})
            cpu += seconds["cpu"]
            if "saturated" in seconds:
                masked.append(false_robustness(seconds["saturated"], 10) is not None)
        if runs:
            fired = sum(run["epochs_warned"] > 0 for run in runs)
            plain = {"n": len(runs), "warned": fired, "must_warn": case.must_warn, "epochs": case.epochs}
            rows[case.name] = plain | {"cpu_seconds": round(cpu, 1), "runs": runs}
    if masked:
        rows["digits AT 0.2, saturated"] = {"n": len(masked), "warned": sum(masked), "must_warn": True}
    return rows


def slug(name: str) -> str:
    return name.lower().replace(" ", "-").replace("/", "_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("cifar10", nargs="?", default="")
    parser.add_argument("--gather", action="store_true")
    options = parser.parse_args()
    if options.gather:
        rows = gather(options.runs)
        write_atomically(OUT, (json.dumps(rows, indent=1) + "\n").encode())
        for name, row in rows.items():
            print(f"{name:28} warned of {row['warned']} of {row['n']}")
        return
    for seed in range(SEEDS):
        for case in CASES:
            if case.images is None or options.cifar10:
                train(case, seed, options.runs / f"{slug(case.name)}-seed{seed}", options.cifar10)


if __name__ == "__main__":
    main()
