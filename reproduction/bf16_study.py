"""What training in bf16 does to accuracy: fp32 beside bf16, three methods, five seeds, paired by seed.

    python -m reproduction.bf16_study cifar10.npz --out runs/bf16
    python -m reproduction.bf16_study cifar10.npz --smoke     # one run of each precision, two short epochs

The regime `underfit` of reproduction.cifar10_study, and its evaluation in float32: clean and PGD-20 on all test images,
AutoAttack on the first 1,000. The attacks inside training run in the precision that is studied. Trains what is missing;
a broken run resumes. Writes reproduction/results/bf16-study.json. Protocol: reproduction/studies/performance.md.
"""

import argparse
import json
from argparse import Namespace
from dataclasses import replace
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import torch
from torch import nn

from rattle.attacks import AutoAttack
from rattle.data import Images
from rattle.evaluation.evaluate import evaluate
from rattle.recipes.recipe import Recipe
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.source import environment
from rattle.training.loop import fit
from reproduction.cifar10_study import AUTOATTACK_IMAGES, REGIMES, WEAK, recipe_of

RESULTS = Path(__file__).parent / "results" / "bf16-study.json"
METHODS = ("trades", "trades-2nd", "trades-awp")
PRECISIONS: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
MEASURES = ("clean", "pgd20", "autoattack")
ALLOWED = 0.3  # points that bf16 may be worse, for `auto` to become the default


def small(recipe: Recipe) -> Recipe:
    """A run that takes a minute."""
    attack, data = replace(recipe.attack, steps=2), replace(recipe.data, train_size=512, val_size=128)
    return replace(recipe, attack=attack, data=data, epochs=2)


def study(method: str, precision: Literal["fp32", "bf16"], seed: int, given: Namespace) -> dict[str, Any]:
    """Accuracies of one run in %, trained and measured unless that was done before."""
    folder, stored = given.out / f"{method}-{precision}-seed{seed}", "accuracies.json"
    if not (folder / stored).exists():
        recipe = replace(recipe_of(REGIMES["underfit"], method, seed, str(given.data)), precision=precision)
        recipe = small(recipe) if given.smoke else recipe
        run = fit(recipe, folder, resume=(folder / "recipe.yaml").exists(), log="none")
        test: Images = recipe.data.load().test
        test = test[torch.arange(64)] if given.smoke else test
        plain = accuracies(load(run.checkpoint("best")), test, folder / "results")
        timing = [json.loads(line)["images_per_second"] for line in run.timing.read_text().splitlines()]
        plain |= {"images_per_second": mean(timing), "n": len(test)}
        write_atomically(folder / stored, json.dumps(plain).encode())
    return {"method": method, "precision": precision, "seed": seed, **json.loads((folder / stored).read_text())}


def accuracies(model: nn.Module, test: Images, store: Path) -> dict[str, float]:
    """Clean, PGD-20 and AutoAttack accuracy in %; AutoAttack only of images that PGD-20 left."""
    weak = evaluate(model, test.x, test.y, {"pgd20": WEAK["pgd20"]}, out=store)
    few = test[torch.arange(min(AUTOATTACK_IMAGES, len(test)))]
    left = list(map(bool, weak.attacks["pgd20"].flags[: len(few)]))
    strong = evaluate(model, few.x, few.y, {"autoattack": AutoAttack()}, mask=left, out=store)
    flags = (weak.clean, weak.attacks["pgd20"].flags, strong.attacks["autoattack"].flags)
    return {name: 100 * mean(map(float, each)) for name, each in zip(MEASURES, flags, strict=True)}


def differences(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """bf16 less fp32 of the same seed in points: mean over seeds and its standard error, by method and measure."""
    found = []
    for method, measure in product(METHODS, MEASURES):
        by_seed: dict[int, dict[str, float]] = {}
        for run in runs:
            if run["method"] == method:
                by_seed.setdefault(run["seed"], {})[run["precision"]] = run[measure]
        gaps = [pair["bf16"] - pair["fp32"] for pair in by_seed.values() if len(pair) == 2]
        if gaps:
            error = stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else None
            row = {"method": method, "measure": measure, "seeds": len(gaps), "difference": mean(gaps), "error": error}
            found.append({**row, "allowed": mean(gaps) >= -ALLOWED})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/bf16"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--smoke", action="store_true", help="see that it runs; nothing is written to results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    methods, seeds = (METHODS[:1], [0]) if given.smoke else (METHODS, given.seeds)
    runs = []
    for seed, method, precision in product(seeds, methods, PRECISIONS):
        runs.append(study(method, precision, seed, given))
        print(runs[-1], flush=True)
    found = {"environment": environment(), "runs": runs, "differences": differences(runs)}
    print(json.dumps(found["differences"], indent=1))
    if not given.smoke:
        write_atomically(RESULTS, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
