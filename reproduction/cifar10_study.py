"""What the Taylor terms do on CIFAR-10 with a slim network, where TRADES underfits and where it overfits robustly.

    python -m reproduction.cifar10_study cifar10.npz --regimes underfit &
    python -m reproduction.cifar10_study cifar10.npz --regimes overfit
    python -m reproduction.cifar10_study cifar10.npz --gather

Trains what is missing (a broken run resumes), attacks each run's checkpoints (PGD-20 and CW-20 on all test images,
AutoAttack on the first 1,000), measures their flatness, and gathers everything in results/cifar10-study.json. One
process for each regime keeps two cores busy. cifar10.npz holds uint8 arrays x_train, x_test [n, 32, 32, 3] and
y_train, y_test [n].
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rattle.analysis.flatness import flatness
from rattle.attacks import AutoAttack
from rattle.data import Augment, Images
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.inputs import to_float
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.runs.source import environment
from rattle.threat import Threat
from reproduction.study import AUTOATTACK_IMAGES, WEAK, train

METHODS = ("trades", "trades-1st", "trades-2nd", "trades-awp", "trades-awp-2nd")
FLAT_IMAGES = 200  # the first of the 10,000 test images


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How much is learned from how many images."""

    images: int
    epochs: int
    batch_size: int
    lr: float
    augment: Augment
    evaluate_every: int
    checkpoints: tuple[str, ...]  # those that are attacked


REGIMES = {
    "underfit": Regime(
        images=10_000,
        epochs=10,
        batch_size=128,
        lr=0.1,
        augment=Augment(),
        evaluate_every=2,
        checkpoints=("best",),
    ),
    "overfit": Regime(
        images=1_000,
        epochs=50,
        batch_size=50,
        lr=0.05,
        augment=Augment(pad=0, flip=False),
        evaluate_every=2,
        checkpoints=("best", "last"),
    ),
}


def recipe_of(regime: Regime, method: str, seed: int, data: str) -> Recipe:
    recipe = get_recipe(f"cifar10-linf-cnn-slim-{method}")
    return replace(
        recipe,
        data=Data(name=data, train_size=regime.images, val_size=1000, augment=regime.augment),
        awp=replace(recipe.awp, warmup=max(1, regime.epochs // 20)) if recipe.awp else None,  # 10 of 200
        optimizer=replace(recipe.optimizer, lr=regime.lr),
        epochs=regime.epochs,
        batch_size=regime.batch_size,
        seed=seed,
        evaluate_every=regime.evaluate_every,
        threads=1,
    )


def study(name: str, method: str, seed: int, options: argparse.Namespace) -> None:
    """Train one run, attack and measure its checkpoints; whatever is done already is left alone."""
    regime, folder = REGIMES[name], options.out / f"{name}-{method}-seed{seed}"
    recipe = recipe_of(regime, method, seed, str(options.data))
    run = train(recipe, folder)
    test = recipe.data.load().test
    for which in regime.checkpoints:
        stored = folder / f"study-{which}.json"
        if not stored.exists():
            found = accuracies_and_flatness(load(run.checkpoint(which)), test, folder / f"results-{which}")
            write_atomically(stored, json.dumps(found).encode())
            print(folder.name, which, {k: v for k, v in found.items() if k != "flags"}, flush=True)


def accuracies_and_flatness(model: torch.nn.Module, test: Images, store: Path) -> dict[str, Any]:
    """Accuracies in %, the four flatness numbers, and behind each accuracy a bit for every image.

    AutoAttack is asked only about images that PGD-20 and CW-20 left: what those broke, at a smaller epsilon, is broken.
    """
    threat, few = Threat(epsilon=8 / 255), test[torch.arange(AUTOATTACK_IMAGES)]
    weak = evaluate(model, test.x, test.y, WEAK, out=store)
    flags = {"clean": weak.clean} | {name: attack.flags for name, attack in weak.attacks.items()}
    attacks, left = {"autoattack": AutoAttack(threat=threat)}, weak.worst_case[:AUTOATTACK_IMAGES]
    strong = evaluate(model, few.x, few.y, attacks, mask=list(map(bool, left)), out=store, batch_size=AUTOATTACK_IMAGES)
    flags["autoattack"] = strong.attacks["autoattack"].flags
    flat = flatness(model, to_float(few.x[:FLAT_IMAGES]), few.y[:FLAT_IMAGES], threat=threat, iterations=30)
    return {
        **{name: 100 * sum(each) / len(each) for name, each in flags.items()},
        "lipschitz": flat["lipschitz"],
        "input_curvature": flat["input_eigenvalue"],
        "weight_curvature": flat["weight_eigenvalue"],
        "noise_rise": flat["noise_rise"],
        "flags": {name: np.packbits(np.array(each, bool)).tobytes().hex() for name, each in flags.items()},
    }


def gathered(options: argparse.Namespace) -> dict[str, Any]:
    """All runs that are finished, with their curves on the held-out images."""
    runs = []
    for name, regime in REGIMES.items():
        for method in METHODS:
            for seed in options.seeds:
                folder = options.out / f"{name}-{method}-seed{seed}"
                parts = {which: folder / f"study-{which}.json" for which in regime.checkpoints}
                if all(path.exists() for path in parts.values()):
                    lines = Run(folder).metrics.read_text().splitlines()
                    shown = ("epoch", "loss", "val_clean", "val_robust")
                    curve = [{k: v for k, v in json.loads(line).items() if k in shown} for line in lines]
                    found = {which: json.loads(path.read_text()) for which, path in parts.items()}
                    runs.append({"regime": name, "method": method, "seed": seed, "curve": curve, "found": found})
    return {"environment": environment(), "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10-study"))
    parser.add_argument("--results", type=Path, default=Path("reproduction/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--gather", action="store_true", help="write down what is there, run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [] if options.gather else options.seeds
    for seed, name, method in product(seeds, options.regimes, METHODS):
        try:
            study(name, method, seed, options)
        except RattleError as refusal:  # another process has it, or it diverged
            print(f"{name} {method} seed {seed}: {refusal}", flush=True)
    if options.gather:
        options.results.mkdir(exist_ok=True)
        (options.results / "cifar10-study.json").write_text(json.dumps(gathered(options), indent=1) + "\n")


if __name__ == "__main__":
    main()
