"""An attack that grows, an average that begins late and warms up, and the momentum of BatchNorm's statistics."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.runs.checkpoint import read_checkpoint
from rattle.training import loop
from rattle.training.loop import fit
from rattle.training.minibatch import ramped_attack
from rattle.training.state import init_state
from rattle.weights import EMA
from support.training import tiny


def test_the_attack_grows_by_whole_epochs_and_then_stays() -> None:
    recipe = tiny("at", epochs=8, ramp=0.5)
    shares = [ramped_attack(recipe, epoch).threat.epsilon / 0.2 for epoch in range(8)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1])
    steps = [ramped_attack(recipe, epoch).step_size / 0.05 for epoch in range(8)]
    assert steps == pytest.approx(shares)
    assert ramped_attack(replace(recipe, ramp=0.0), 0) == recipe.attack


def test_training_uses_the_attack_of_its_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], PGD.__call__

    def spy(attack: PGD, model: nn.Module, *batch: object, **settings: object) -> object:
        if model.training:
            seen.append(attack.threat.epsilon)
        return real(attack, model, *batch, **settings)

    monkeypatch.setattr(PGD, "__call__", spy)
    fit(tiny("at", ramp=1.0), tmp_path / "run", log="none")
    assert seen == pytest.approx([0.1] * 3 + [0.2] * 3)


@pytest.mark.parametrize("warmup", [False, True])
def test_an_average_begins_as_a_copy_and_keeps_more_and_more(
    warmup: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, weights, real = EMA(decay=0.3, start=0.34, warmup=warmup), [], loop.update_average

    def spy(state: object, **how: bool) -> None:
        weights.append(state.model.head.weight.detach().clone())
        real(state, **how)

    monkeypatch.setattr(loop, "update_average", spy)
    recipe = tiny("at", average=settings)
    saved = read_checkpoint(fit(recipe, tmp_path / "run", log="none").checkpoint("last")).tensors
    assert int(saved["average.n_averaged"]) == 5  # of six steps: begun when a third of the run was done
    average = weights[1]
    for t, w in enumerate(weights[2:]):
        keep = min(0.3, (1 + t) / (10 + t)) if warmup else 0.3
        average = keep * average + (1 - keep) * w
    torch.testing.assert_close(saved["average.module.head.weight"], average)
    means = [saved[f"{part}.body.1.running_mean"] for part in ("model", "average.module")]
    assert not torch.equal(*means)  # statistics are averaged too


def test_until_it_begins_the_model_itself_counts(tmp_path: Path) -> None:
    run = fit(tiny("at", average=EMA(start=0.9)), tmp_path / "run", log="none")
    first, second = run.metrics.read_text().splitlines()
    assert "val_robust_average" not in first
    assert "val_robust_average" in second


def test_batchnorm_takes_the_momentum_of_the_recipe() -> None:
    recipe = tiny("at")
    for momentum, wanted in ((None, 0.1), (0.01, 0.01)):
        state = init_state(replace(recipe, batch_norm_momentum=momentum), recipe.data.load())
        norms = [module for module in state.model.modules() if isinstance(module, nn.BatchNorm2d)]
        assert {module.momentum for module in norms} == {wanted}
    with pytest.raises(RattleError, match="the network has no BatchNorm layer"):
        init_state(replace(recipe, model="cnn-plain", batch_norm_momentum=0.01), recipe.data.load())
