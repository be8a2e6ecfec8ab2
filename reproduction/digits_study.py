"""Orders 0, 1, 2 in modes head and released, on TRADES and TRADES-AWP, over seeds, on the embedded digits.

    python -m reproduction.digits_study --out runs/study --seeds 0 1 2 3 4

Runs what is missing (a broken run resumes), evaluates every run on the whole test set, and writes the table as
reproduction/results/digits-study.json and .md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from rattle.attacks.registry import get_attack
from rattle.evaluation.evaluate import evaluate
from rattle.objectives import Trades
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.load import load
from rattle.stats import summarise
from rattle.training.loop import fit
from rattle.weights import Noise
from reproduction.readings.variants import ReleasedLoss

SUFFIXES = ("", "-1st", "-2nd", "-1st-released", "-2nd-released")
METHODS = [f"{base}{suffix}" for base in ("trades", "trades-awp") for suffix in SUFFIXES]
ATTACKS = ("pgd20", "cw20")


class ConvolutionNoise(Noise):
    """u on the convolutions alone."""

    def moves(self, weight: Tensor) -> bool:
        return self.sigma > 0 and weight.ndim == 4


def recipe_of(method: str, seed: int) -> Recipe:
    """A named recipe; those that end in -released take the release's loss and noise, and nothing else of it."""
    recipe = replace(get_recipe(f"digits-linf-cnn-{method.removesuffix('-released')}"), seed=seed)
    if not method.endswith("-released"):
        return recipe
    objective = recipe.objective
    assert isinstance(objective, Trades)
    taylor = replace(objective.taylor, mode="released-targets")
    objective = ReleasedLoss(taylor=taylor, inv_lambda=objective.inv_lambda)
    return replace(recipe, objective=objective, noise=ConvolutionNoise(sigma=0 if recipe.awp else 1e-4))


def accuracies(method: str, seed: int, folder: Path) -> dict[str, float]:
    """Clean, PGD-20 and CW-20 accuracy of one run, trained if need be."""
    stored = folder / "study.json"
    if stored.exists():
        return json.loads(stored.read_text())
    recipe = recipe_of(method, seed)
    run = fit(recipe, folder, resume=(folder / "recipe.yaml").exists())
    test = recipe.data.load().test
    attacks = {name: get_attack(name, recipe.attack.threat) for name in ATTACKS}
    row = {}
    for which in ("best", "last"):
        result = evaluate(load(run.checkpoint(which)), test.x, test.y, attacks)
        row |= {f"{which}_clean": 100 * result.clean_accuracy}
        row |= {f"{which}_{name}": 100 * attack.accuracy for name, attack in result.attacks.items()}
    stored.write_text(json.dumps(row))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--results", type=Path, default=Path("reproduction/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {method: [] for method in METHODS}
    for seed in options.seeds:
        for method in METHODS:
            rows[method].append(accuracies(method, seed, options.out / f"{method}-seed{seed}"))
            print(method, seed, rows[method][-1], flush=True)
    columns = list(rows[METHODS[0]][0])
    lines = ["| method | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for method, found in rows.items():
        cells = [summarise([row[column] for row in found]) for column in columns]
        lines.append(f"| {method} | " + " | ".join(f"{cell.mean:.1f} ± {cell.deviation:.1f}" for cell in cells) + " |")
    options.results.mkdir(exist_ok=True)
    (options.results / "digits-study.json").write_text(json.dumps({"seeds": options.seeds, "rows": rows}, indent=1))
    (options.results / "digits-study.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
