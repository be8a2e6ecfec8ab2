"""Every training method on real CIFAR-10 at the same budget of processor time: one network, one protocol, three seeds.

    python -m reproduction.methods_study cifar10.npz --calibrate      # what each new method costs over TRADES
    python -m reproduction.methods_study cifar10.npz                  # trains and attacks what is missing
    python -m reproduction.methods_study cifar10.npz --gather         # writes reproduction/results/methods-study.json

Two of the second at once share the work. A method trains for as many epochs as cost what BUDGET epochs of TRADES cost,
teachers that it needs first included. The last weights are attacked (the averaged ones where a method averages); no
image chooses anything. cifar10.npz holds uint8 arrays x_train, x_test [n, 32, 32, 3] and y_train, y_test [n].
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from rattle.attacks import AutoAttack
from rattle.data import Images
from rattle.data.dataset import choose_images
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.lock import locked
from rattle.runs.paths import Run
from rattle.runs.source import environment
from rattle.threat import Threat
from rattle.training.loop import fit
from reproduction.study import WEAK

LEFT_OUT = ("rice", "sota")  # AT once more, as this protocol sets its settings; needs generated images
VARIANTS = ("trades-awp", "mart-awp", "s2o-trades-awp", "trades-sam", "at-asam")
TAYLOR = ("at-2nd", "trades-1st", "trades-2nd", "trades-awp-2nd", "mart-2nd")
NAMES = (*(name for name in METHODS if name in METHODS.built_in and name not in LEFT_OUT), *VARIANTS, *TAYLOR)
BUDGET, IMAGES, BATCH, RATE = 14, 5_000, 64, 0.05  # epochs of TRADES, training images, batch size, learning rate
RESULTS = Path(__file__).parent / "results"
TEST_IMAGES = 1_000  # a fair sample of the 10,000, the same for every run


def recipe_of(name: str, data: str, *, epochs: int, seed: int, images: int = IMAGES) -> Recipe:
    recipe = get_recipe(f"cifar10-linf-cnn-slim-{name}")
    return replace(
        recipe,
        data=Data(name=data, train_size=images, val_size=100),
        awp=replace(recipe.awp, warmup=min(recipe.awp.warmup, max(1, epochs // 20))) if recipe.awp else None,
        optimizer=replace(recipe.optimizer, lr=RATE),
        epochs=epochs,
        batch_size=BATCH,
        seed=seed,
        evaluate_every=epochs,
        save_minutes=2,
        threads=1,
    )


def calibrate(options: argparse.Namespace, rounds: int = 3) -> None:
    """Processor seconds of a short training of every method over TRADES', from weights that TRADES trained a little.

    A whole training is timed, teachers and schedules included, because methods change their cost during a run. Methods
    that were measured before keep their figures.
    """
    begun, known = options.out / "calibration", calibration(options)
    names = ["trades", *(name for name in NAMES if name != "trades" and name not in known)]
    if not Run(begun).exists():
        fit(recipe_of("trades", str(options.data), epochs=2, seed=100), begun, log="none")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _, name in product(range(rounds), names):
        recipe = recipe_of(name, str(options.data), epochs=4, seed=100, images=8 * BATCH)
        recipe = replace(recipe, init=str(Run(begun).checkpoint("last")))
        folder = Path(tempfile.mkdtemp())
        start = time.process_time()
        fit(recipe, folder / "run", log="none")
        seconds[name].append(time.process_time() - start - idle_seconds(recipe))
        shutil.rmtree(folder)
        print(name, f"{seconds[name][-1]:.2f} s", flush=True)
    ratios = {
        name: median(a / b for a, b in zip(found, seconds["trades"], strict=True)) for name, found in seconds.items()
    }
    stored = {"over_trades": ratios | known, "environment": environment()}
    write_atomically(options.out / "calibration.json", json.dumps(stored, indent=1).encode())


def calibration(options: argparse.Namespace) -> dict[str, float]:
    """Cost over TRADES of the methods that were measured."""
    path = options.out / "calibration.json"
    return json.loads(path.read_text())["over_trades"] if path.exists() else {}


def idle_seconds(recipe: Recipe) -> float:
    """What reading the images costs, which a short training should not count."""
    start = time.process_time()
    recipe.data.load()
    return time.process_time() - start


def study(name: str, seed: int, epochs: int, options: argparse.Namespace) -> None:
    """Train one run and attack it; whatever is done already is left alone."""
    folder = options.out / f"{name}-seed{seed}"
    stored = folder / "study.json"
    if stored.exists():
        return
    recipe, start = recipe_of(name, str(options.data), epochs=epochs, seed=seed), time.process_time()
    run = fit(recipe, folder, resume=(folder / "recipe.yaml").exists(), log="none")
    trained = time.process_time() - start
    found = accuracies(load(run.checkpoint("last")), recipe.data.load().test, folder / "results-study")
    found |= {"epochs": epochs, "train_seconds": trained, "evaluate_seconds": time.process_time() - start - trained}
    write_atomically(stored, json.dumps(found).encode())
    print(folder.name, {k: v for k, v in found.items() if k != "flags"}, flush=True)


def accuracies(model: torch.nn.Module, test: Images, store: Path) -> dict[str, Any]:
    """Accuracies in %, and behind each a bit for every image.

    AutoAttack is asked only about images that PGD-20 and CW-20 left: what those broke, at a smaller epsilon, is broken.
    """
    few = test[choose_images(test.y, TEST_IMAGES)]
    weak = evaluate(model, few.x, few.y, WEAK, out=store)
    flags = {"clean": weak.clean} | {name: attack.flags for name, attack in weak.attacks.items()}
    attack = AutoAttack(threat=Threat(epsilon=8 / 255))
    left = list(map(bool, weak.worst_case))
    strong = evaluate(model, few.x, few.y, {"autoattack": attack}, mask=left, out=store, batch_size=TEST_IMAGES)
    flags["autoattack"] = strong.attacks["autoattack"].flags
    return {
        **{name: 100 * sum(each) / len(each) for name, each in flags.items()},
        "flags": {name: np.packbits(np.array(each, bool)).tobytes().hex() for name, each in flags.items()},
    }


def gathered(options: argparse.Namespace) -> dict[str, Any]:
    """All runs that are finished."""
    runs = []
    before = {(run["method"], run["seed"]): run for run in finished(options)}
    for name, seed in product(NAMES, options.seeds):
        stored = options.out / f"{name}-seed{seed}" / "study.json"
        if stored.exists():
            runs.append({"method": name, "seed": seed, "found": {"last": json.loads(stored.read_text())}})
        elif (name, seed) in before:
            runs.append(before[name, seed])
    return {"environment": environment(), "cost": calibration(options), "runs": runs}


def finished(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs that were gathered before, whose folders may be gone."""
    path = options.results / "methods-study.json"
    return json.loads(path.read_text())["runs"] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/methods-study"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(NAMES))
    parser.add_argument("--calibrate", action="store_true", help="measure what each method costs, train nothing")
    parser.add_argument("--gather", action="store_true", help="write down what is there, run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.calibrate:
        return calibrate(options)
    if options.gather:
        options.results.mkdir(exist_ok=True)
        (options.results / "methods-study.json").write_text(json.dumps(gathered(options), indent=1) + "\n")
        return None
    ratios, done = calibration(options), {(run["method"], run["seed"]) for run in finished(options)}
    for seed, name in product(options.seeds, options.methods):
        if (name, seed) in done:
            continue
        try:
            with locked(options.out / f"{name}-seed{seed}.lock"):  # also while it is attacked, when fit holds none
                study(name, seed, max(2, round(BUDGET / ratios[name])), options)
        except RattleError as refusal:  # another process has it, or it diverged
            print(f"{name} seed {seed}: {refusal}", flush=True)
    return None


if __name__ == "__main__":
    main()
