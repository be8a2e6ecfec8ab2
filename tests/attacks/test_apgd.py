"""APGD against exact distances, its schedule, and its behaviour with few classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rattle import losses
from rattle.attacks import APGD
from rattle.attacks.apgd import step_size_checkpoints
from rattle.attacks.rows import FlatModel, TargetRows
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from support.attack_cases import NORMS, linear, robust_after


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("loss", "classes"), [("ce", 2), ("ce", 6), ("dlr", 6), ("dlr-targeted", 6)])
def test_the_result_on_a_linear_model_is_exact(norm, loss, classes) -> None:
    case = linear(classes)
    threat = case.threat(norm)
    attack = APGD(threat=threat, loss=loss, steps=60 if norm == "l1" else 40, eps_schedule=norm == "l1")
    found, safe = robust_after(attack, case), case.distance[norm] > threat.epsilon
    assert not (safe & ~found).any()  # nothing is broken that cannot be
    if loss == "dlr-targeted" or classes == 2:  # otherwise the loss may lead to another class than the nearest
        assert torch.equal(found, safe)
    else:
        assert (found == safe).float().mean() >= 0.9


@pytest.mark.parametrize(
    ("classes", "loss", "margin"), [(2, "dlr", losses.cw), (3, "dlr-targeted", losses.cw_targeted)]
)
def test_too_few_classes_for_dlr_fall_back_to_the_margin_and_are_exact(classes, loss, margin) -> None:
    case = linear(classes)
    threat = case.threat("linf")
    attack = APGD(threat=threat, loss=loss, targets=9, steps=40)
    other, logits = (case.y + 1) % classes, case.model(case.x)
    wanted = margin(logits, case.y) if loss == "dlr" else margin(logits, case.y, other)
    assert torch.equal(attack.sample_losses(logits, case.y, other), wanted)
    assert torch.equal(robust_after(attack, case), case.distance["linf"] > threat.epsilon)


def test_checkpoints_are_the_papers() -> None:
    assert sorted(step_size_checkpoints(100)) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert sorted(step_size_checkpoints(3)) == [1, 2, 3]


def test_an_unbroken_image_gets_the_optimum_of_a_linear_model() -> None:
    case = linear(2)
    threat = Threat(epsilon=float(case.distance["linf"].min()) / 2)
    x_adv = APGD(threat=threat, steps=20)(case.model, case.x, case.y)
    weight = case.model[1].weight.detach()
    toward = (weight[1 - case.y] - weight[case.y]).sign().view_as(case.x)  # nothing leaves [0, 1] here
    best = losses.ce(case.model(case.x + threat.epsilon * toward), case.y)
    torch.testing.assert_close(losses.ce(case.model(x_adv), case.y), best, rtol=1e-5, atol=1e-6)


class Wavy(nn.Module):
    """A loss with many maxima, and always the right class; records the loss of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wave = torch.sin(40 * x.flatten(1)).sum(1)
        self.losses.append(wave.detach())
        return torch.stack([5 + 0 * wave, wave], 1)


def test_an_unbroken_image_gets_the_point_of_highest_loss_that_was_tried() -> None:
    model, x, y = Wavy(), torch.rand(9, 1, 2, 2, dtype=torch.float64), torch.zeros(9, dtype=torch.long)
    x_adv = APGD(threat=Threat(epsilon=0.3), steps=12)(model, x, y, generator=ImageStreams(0, torch.arange(9)))
    tried = torch.stack(model.losses[-13:])  # the start and 12 steps
    model(x_adv)
    torch.testing.assert_close(model.losses[-1], tried.amax(0), rtol=0, atol=1e-12)
    assert (tried[-1] < tried.amax(0)).any()  # the last point would not do


def test_restarts_break_no_fewer_images() -> None:
    case = linear(6)
    threat = case.threat("l2")
    once = robust_after(APGD(threat=threat, steps=3), case)
    often = robust_after(APGD(threat=threat, steps=3, restarts=4), case)
    assert not (often & ~once).any()


class Noisy(nn.Module):
    """A linear model whose weights are drawn anew in every call, which it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.flatten(1) @ torch.randn(36, 3, generator=torch.Generator().manual_seed(self.calls))


def test_gradients_of_a_random_model_are_averaged() -> None:
    x, y = torch.rand(5, 1, 6, 6), torch.tensor([0, 1, 2, 0, 1])
    rows = TargetRows(torch.arange(5), torch.arange(5), x.flatten(1), y, y)

    def gradient(eot: int, calls_before: int) -> torch.Tensor:
        model = FlatModel(noisy := Noisy(), x)
        noisy.calls = calls_before
        return APGD(eot=eot).loss_and_grad(model, rows, rows.x)[2]

    single = [gradient(1, calls_before) for calls_before in range(4)]
    assert not torch.allclose(single[0], single[1])
    torch.testing.assert_close(gradient(4, 0), torch.stack(single).mean(0))
