"""How often training warns of false robustness: runs known to be sound, and runs known to be overfitted or masked.

    python -m reproduction.false_robustness RUNS [--part check]              # trains what is missing in the folder RUNS
    python -m reproduction.false_robustness RUNS --gather [--sound RUN ...]  # writes results/false-robustness.json

The protocol is studies/false-robustness.md: thresholds are fixed on the part `calibration`, rates are those of `check`.
FGSM-AT is N-FGSM without its noise. `saturated` is the network of `at` with logits 1000 times as large, measured once:
its cross-entropy has no gradient where an image is right. --sound: runs of other studies by AT or TRADES, counted with
the check.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.data.registry import Data
from rattle.evaluation.evaluate import evaluate
from rattle.inputs import is_correct, to_float
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import NO_AUGMENT, make_recipe
from rattle.recipes.recipe import SGD, Recipe
from rattle.recipes.schema import replace_at
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.stats import wilson
from rattle.training.loop import fit
from rattle.training.validation import SIGNS, VALIDATION_BATCH, false_robustness, signs

OUT = Path(__file__).parent / "results" / "false-robustness.json"
TEST_IMAGES = 300
PARTS = ("calibration", "check")
FAINT = 8 / 76.5  # contrast of the faint digits


@dataclass(frozen=True)
class Case:
    """A training, and whether it has to be warned of."""

    name: str
    method: str
    epsilon: float
    epochs: int
    must_warn: bool | None  # None: nobody knows, the rate is shown
    noise: float | None = None  # of n-fgsm
    faint: bool = False  # on the digits of little contrast
    seeds: tuple[int, int] = (1, 3)  # how many of calibration and of check


CASES = (
    Case("digits FGSM-AT 0.3", "n-fgsm", 0.3, 30, True, noise=0.0, seeds=(2, 5)),
    Case("digits AT 0.2", "at", 0.2, 12, False, seeds=(2, 3)),
    Case("digits TRADES 0.2", "trades", 0.2, 12, False),
    Case("digits N-FGSM 0.2", "n-fgsm", 0.2, 30, False),
    Case("faint digits FGSM-AT 8/255", "n-fgsm", 8 / 255, 30, True, noise=0.0, faint=True),
)


def seeds_of(case: Case, part: str) -> range:
    """Calibration has seeds 0, 1, ..., the check 10, 11, ...; a seed also chooses the held-out images."""
    first, number = 10 * PARTS.index(part), case.seeds[PARTS.index(part)]
    return range(first, first + number)


class Saturated(nn.Module):
    """The same predictions from logits 1000 times as large."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        return 1000 * self.own(x)


def recipe_of(case: Case, seed: int, root: Path) -> Recipe:
    """The recipe of a case; the seed also chooses the held-out images."""
    changes: dict[str, Any] = {
        "epochs": case.epochs,
        "seed": seed,
        "threads": 1,
        "model": "cnn",
        "width": 16,
        "optimizer": SGD(lr=0.05),
    }
    changes["batch_size"] = 64 if case.method in ("at", "trades") else 32
    data = Data(name="digits", val_size=130, augment=NO_AUGMENT, split_seed=seed)
    if case.faint:
        data = replace(data, name=str(faint_digits(root)))
    recipe = make_recipe(case.method, data=data, epsilon=case.epsilon, **changes)
    return recipe if case.noise is None else replace_at(recipe, "objective.noise", case.noise)


def faint_digits(root: Path) -> Path:
    """The digits in greys of 0 to 27 of 255: 8/255 is 0.3 of their contrast."""
    path = root / "faint-digits.npz"
    if not path.exists():
        digits = Data().load()
        arrays = {}
        for part, images in (("train", digits.train), ("test", digits.test)):
            arrays[f"x_{part}"] = (images.x[:, 0] * FAINT).round().to(torch.uint8).numpy()
            arrays[f"y_{part}"] = images.y.numpy()
        root.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)
    return path


def train(case: Case, seed: int, root: Path) -> None:
    """Train one run, unless it is there, and note its CPU time."""
    folder = folder_of(root, case, seed)
    done = folder / "seconds.json"
    if done.exists():
        return
    begun = time.process_time()
    run = fit(recipe_of(case, seed, root), folder, overwrite=True, log="none", quiet=True)
    seconds: dict[str, Any] = {"cpu": time.process_time() - begun}
    if case.method == "at":
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


def gather(root: Path, sound: Sequence[Path]) -> dict[str, Any]:
    """By part and case: how many runs the thresholds of now warn of, with the 95 % interval, and the runs' signs."""
    found: dict[str, Any] = {}
    for part in PARTS:
        rows, masked = {}, []
        for case in CASES:
            folders = [folder_of(root, case, seed) for seed in seeds_of(case, part)]
            folders = [folder for folder in folders if (folder / "seconds.json").exists()]
            seconds = [json.loads((folder / "seconds.json").read_text()) for folder in folders]
            if folders:
                rows[case.name] = rate(folders, case.must_warn)
                rows[case.name]["cpu_seconds"] = round(sum(each["cpu"] for each in seconds), 1)
            masked += [false_robustness(each["saturated"], 10) is not None for each in seconds if "saturated" in each]
        if masked:
            rows["saturated logits"] = counted(masked, must_warn=True)
        if part == "check" and sound:
            rows["other studies"] = rate(sound, must_warn=False)
        found[part] = rows
    return found


def rate(folders: Sequence[Path], must_warn: bool | None) -> dict[str, Any]:
    """How many runs are warned of, and for each run when, and its signs after the last epoch that has them."""
    runs = []
    for folder in folders:
        lines = [json.loads(line) for line in Run(folder).metrics.read_text().splitlines()]
        lines = [line for line in lines if "val_sample" in line]
        warned = [line["epoch"] for line in lines if false_robustness(line, 10)]
        gaps = [line["val_sample_one_step"] - line["val_sample_robust"] for line in lines]
        margins = [line["val_sample_robust"] - line["val_sample_margin"] for line in lines]
        last = {name.removeprefix("val_"): round(value, 4) for name, value in lines[-1].items() if "val_" in name}
        signs_of = {"largest_gap": round(max(gaps), 4), "largest_to_margin": round(max(margins), 4), "last": last}
        signs_of["test"] = on_test_images(folder)
        first = warned[0] if warned else None
        runs.append({"run": folder.name, "validations": len(lines), "warned": len(warned), "first": first, **signs_of})
    return counted([run["warned"] > 0 for run in runs], must_warn) | {"runs": runs}


def on_test_images(folder: Path) -> dict[str, float]:
    """Accuracy of the last weights under one step of epsilon and under 50 of epsilon / 4, apart from the detector."""
    recipe, model = Recipe.from_yaml(Run(folder).recipe.read_text()), load(Run(folder).checkpoint("last"))
    test, threat = recipe.data.load().test[torch.arange(TEST_IMAGES)], recipe.attack.threat
    one = PGD(threat=threat, steps=1, step_size=threat.epsilon, start="none")
    many = PGD(threat=threat, steps=50, step_size=threat.epsilon / 4)
    found = evaluate(model, test.x, test.y, {"one_step": one, "pgd50": many}, quiet=True).attacks
    return {name: round(sum(found[name].flags) / TEST_IMAGES, 4) for name in found}


def counted(flags: Sequence[bool], must_warn: bool | None) -> dict[str, Any]:
    interval = wilson(sum(flags), len(flags))
    bounds = {"low": round(interval.low, 4), "high": round(interval.high, 4)}
    return {"n": len(flags), "warned": sum(flags), **bounds, "must_warn": must_warn}


def folder_of(root: Path, case: Case, seed: int) -> Path:
    return root / f"{case.name.lower().replace(' ', '-').replace('/', '_')}-seed{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--part", choices=PARTS, default=PARTS[0])
    parser.add_argument("--gather", action="store_true")
    parser.add_argument("--sound", type=Path, nargs="*", default=())
    options = parser.parse_args()
    if options.gather:
        found = gather(options.runs, options.sound)
        write_atomically(OUT, (json.dumps(found, indent=1) + "\n").encode())
        for part, rows in found.items():
            for name, row in rows.items():
                print(
                    f"{part:12} {name:22} warned of {row['warned']} of {row['n']} [{row['low']:.0%}, {row['high']:.0%}]"
                )
        return
    for case in CASES:
        for seed in seeds_of(case, options.part):
            train(case, seed, options.runs)


if __name__ == "__main__":
    main()
