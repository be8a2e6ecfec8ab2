"""APGD against exact distances, its schedule, and its behaviour with few classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rattle import losses
from rattle.attacks import APGD
from rattle.attacks.apgd import checkpoints, effective_loss
from rattle.errors import RattleError
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from support.attack_cases import NORMS, linear, robust


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("loss", "classes"), [("ce", 2), ("ce", 6), ("dlr", 6), ("dlr-targeted", 6)])
def test_the_verdict_on_a_linear_model_is_exact(norm, loss, classes) -> None:
    case = linear(classes)
    threat = case.threat(norm)
    attack = APGD(threat=threat, loss=loss, steps=60 if norm == "l1" else 40, eps_schedule=norm == "l1")
    x_adv = attack(case.model, case.x, case.y, generator=ImageStreams(0, torch.arange(len(case.x))))
    safe = case.distance[norm] > threat.epsilon
    found = robust(case.model, x_adv, case.y)
    assert not (safe & ~found).any()  # nothing is broken that cannot be
    if loss == "dlr-targeted" or classes == 2:  # otherwise the loss may lead to another class than the nearest
        assert torch.equal(found, safe)
    else:
        assert (found == safe).float().mean() >= 0.9


@pytest.mark.parametrize(
    ("classes", "loss", "used"), [(2, "dlr", "cw"), (3, "dlr-targeted", "cw-targeted"), (2, "ce", "ce")]
)
def test_too_few_classes_for_dlr_fall_back_to_the_margin_and_are_exact(classes, loss, used) -> None:
    case = linear(classes)
    threat = case.threat("linf")
    assert effective_loss(loss, classes) == used
    x_adv = APGD(threat=threat, loss=loss, targets=9, steps=40)(case.model, case.x, case.y)
    found, safe = robust(case.model, x_adv, case.y), case.distance["linf"] > threat.epsilon
    assert torch.equal(found, safe)


def test_checkpoints_are_the_papers() -> None:
    assert sorted(checkpoints(100)) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert sorted(checkpoints(3)) == [1, 2, 3]


def test_an_unbroken_image_gets_its_highest_point() -> None:
    case = linear(5)
    threat = Threat(epsilon=float(case.distance["linf"].min()) / 2)
    x_adv = APGD(threat=threat, steps=20)(case.model, case.x, case.y)
    with torch.no_grad():
        assert (losses.ce(case.model(x_adv), case.y) > losses.ce(case.model(case.x), case.y)).all()


def test_restarts_break_no_fewer_images() -> None:
    case = linear(6)
    threat = case.threat("l2")
    once, often = (
        robust(
            case.model,
            APGD(threat=threat, steps=3, restarts=k)(
                case.model, case.x, case.y, generator=ImageStreams(0, torch.arange(24))
            ),
            case.y,
        )
        for k in (1, 4)
    )
    assert not (often & ~once).any()


def test_gradients_of_a_random_model_are_averaged() -> None:
    class Noisy(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Noisy.calls += 1
            return case.model(x + 0.3 * torch.randn_like(x))

    case = linear(3, n=6)
    APGD(threat=Threat(epsilon=1e-4), steps=2, eot=4)(Noisy(), case.x, case.y)
    assert Noisy.calls <= 2 + 2 * 4 + 1  # layout, clean, two gradients, one last look


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be >= 1"),
        ({"targets": 0}, "targets must be >= 1"),
        ({"eot": 0}, "eot must be >= 1"),
        ({"rho": 2.0}, "rho"),
        ({"loss": "hinge"}, "loss must be"),
        ({"eps_schedule": True}, "eps_schedule is for the l1 threat"),
    ],
)
def test_bad_settings_are_refused(options, message) -> None:
    with pytest.raises(RattleError, match=message):
        APGD(**options)
