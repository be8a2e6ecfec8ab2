"""Short runs in double precision, for comparing runs whose sums were taken in another order."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rattle.attacks import PGD
from rattle.objectives import Taylor, Trades
from rattle.recipes.recipe import Recipe, ValAttack
from rattle.runs.checkpoint import Checkpoint, read_checkpoint
from rattle.runs.paths import Run
from rattle.threat import Threat
from rattle.training.loop import fit
from support.precision import in_double
from support.training import tiny


def five_steps(order: int, **changes: object) -> Recipe:
    """One epoch of five steps, without a statistic that depends on how a batch is split."""
    short = PGD(threat=Threat(epsilon=0.2), steps=2, step_size=0.05, loss="kl", start="gaussian")
    val_attack = ValAttack(steps=2, step_size=0.05)
    recipe = tiny("trades-2nd", epochs=1, attack=short, val_attack=val_attack, model="cnn-plain")
    recipe = replace(recipe, objective=Trades(taylor=Taylor(order=order)), data=replace(recipe.data, train_size=320))
    return replace(recipe, **changes)


def precisely(recipe: Recipe, folder: Path) -> Run:
    with in_double():
        return fit(recipe, folder)


def outcome(run: Run) -> tuple[Checkpoint, dict[str, float]]:
    return read_checkpoint(run.checkpoint("last")), json.loads(run.metrics.read_text())


def check_equal(one: Run, other: Run, tolerance: float = 1e-5) -> None:
    """Losses, weights and all else to the tolerance."""
    (left, left_metrics), (right, right_metrics) = outcome(one), outcome(other)
    assert left.progress["step"] == right.progress["step"] == 5
    assert left_metrics == pytest.approx(right_metrics, abs=tolerance)
    assert left.tensors.keys() == right.tensors.keys()
    for name, value in left.tensors.items():
        torch.testing.assert_close(value, right.tensors[name], atol=tolerance, rtol=0, msg=name)
