"""Signs of false robustness: FOSC beside its formula, and which runs they warn of."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.report import build_page
from rattle.threat import Norm, Threat
from rattle.training.loop import fit
from rattle.training.validation import SIGNS, false_robustness, fosc, signs
from support.tiny_runs import digits, linear
from support.training import Listening


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_fosc_is_zero_where_a_linear_loss_is_highest_in_the_ball_and_positive_elsewhere(norm: Norm) -> None:
    threat = Threat(norm=norm, epsilon=0.1)
    x, g = torch.full((3, 1, 2, 2), 0.5), torch.tensor([3.0, -2.0, 1.0, 0.5]).view(1, 1, 2, 2).repeat(3, 1, 1, 1)
    highest = {"linf": 0.1 * g.sign(), "l2": 0.1 * g / g[0].norm(), "l1": 0.1 * (g == 3)}[norm]
    assert fosc(threat, x, x + highest, g).abs().max() < 1e-6
    dual = {"linf": 6.5, "l2": 14.25**0.5, "l1": 3.0}[norm]
    torch.testing.assert_close(fosc(threat, x, x, g), torch.full((3,), 0.1 * dual))
    torch.testing.assert_close(fosc(threat, x, x - highest, g), torch.full((3,), 0.2 * dual))


class Saturated(nn.Module):
    """Logits so large that the cross-entropy of an image that is right has no gradient; its margin has."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        return 1000 * self.own(x)


def test_saturated_logits_are_seen_and_the_same_network_without_them_is_not() -> None:
    _, _, x, y = digits()
    attack, found = PGD(threat=Threat(epsilon=0.1), step_size=0.025), {}
    for name, model in {"plain": linear(), "saturated": Saturated(linear())}.items():
        right = model(x[:200] / 255).argmax(1) == y[:200]
        clean, labels = x[:200][right] / 255, y[:200][right]
        draws = ImageStreams(0, torch.arange(len(labels)))
        each = signs(model, attack, clean, labels, attack(model, clean, labels), draws)
        metrics = {f"val_sample_{sign}": float(each[sign].float().mean()) for sign in SIGNS}
        found[name] = false_robustness(metrics | {"val_sample": len(labels)}, attack.steps)
    assert found["plain"] is None
    assert found["saturated"] is not None


ROBUST = {"val_sample": 250, "val_sample_robust": 0.5, "val_sample_margin": 0.47, "val_sample_one_step": 0.56}
ROBUST |= {"val_sample_only_one_step": 0.01, "val_sample_fosc": 0.1}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, None),
        ({"val_sample_robust": 0.02, "val_sample_margin": 0.02, "val_sample_one_step": 0.8}, "catastrophic"),
        ({"val_sample_margin": 0.25}, "margin"),
        ({"val_sample_only_one_step": 0.1}, "one step breaks"),
        ({"val_sample_only_one_step": 0.1, "val_sample": 99}, None),
        ({f"{name}_average": value for name, value in ROBUST.items()} | {"val_sample_margin": 0.1}, None),
    ],
)
def test_a_sentence_where_a_threshold_is_crossed(changes: dict[str, float], word: str | None) -> None:
    sentence = false_robustness(ROBUST | changes, steps=10)
    assert (sentence is None) == (word is None)
    assert word is None or word in str(sentence)
    assert false_robustness(ROBUST | changes, steps=1) is None


@pytest.mark.slow
def test_a_run_that_overfits_one_step_is_told_in_log_metrics_and_page(tmp_path: Path) -> None:
    recipe = get_recipe("digits-linf-cnn-n-fgsm")
    threat = Threat(epsilon=0.3)
    recipe = replace(
        recipe,
        attack=replace(recipe.attack, threat=threat),
        objective=replace(recipe.objective, noise=0.0),
        val_attack=replace(recipe.val_attack, step_size=0.075),
        epochs=16,
        threads=1,
    )
    console = Listening()
    run = fit(recipe, tmp_path / "run", log="tensorboard", console=console)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert "warning" not in lines[0]
    assert "catastrophic overfitting" in lines[-1]["warning"]
    assert any(line.startswith("warning: ") for line in console.lines)
    assert "catastrophic overfitting" in build_page([run.folder]).read_text(encoding="utf-8")
