"""The inner attacks of single methods stay in their balls, in every norm."""

from collections.abc import Callable
from functools import partial

import pytest

from rattle.attacks import PGD
from rattle.objectives.base import InnerAttack
from rattle.objectives.fat import early_stopped_pgd
from rattle.objectives.gat import guided_step
from rattle.objectives.n_fgsm import NFGSM
from rattle.threat import Threat
from support.inner_attacks import problem


def early_stopped(threat: Threat) -> InnerAttack:
    return partial(early_stopped_pgd, PGD(threat=threat, steps=3, step_size=0.08), tau=0, omega=0.1)


def guided(threat: Threat) -> InnerAttack:
    return partial(guided_step, threat, 10.0)


def noisy(threat: Threat) -> InnerAttack:
    return partial(NFGSM().noisy_step, threat)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("make", "reach"), [(early_stopped, 1), (guided, 1), (noisy, 3)])
def test_the_points_lie_in_the_ball(make: Callable[[Threat], InnerAttack], reach: int, norm: str) -> None:
    given, threat = problem(10), Threat(norm=norm, epsilon=0.1)
    x_adv = make(threat)(given.model, given.x, given.y)
    assert bool(Threat(norm=norm, epsilon=reach * 0.1).contains(x_adv, given.x).all())
    assert float(threat.distance(x_adv, given.x).max()) > 0.05
