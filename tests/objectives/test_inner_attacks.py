"""The inner attacks of single methods stay in their balls, in every norm."""

from collections.abc import Callable

import pytest

from rattle.attacks import PGD, Attack
from rattle.objectives.fat import EarlyStoppedPGD
from rattle.objectives.gat import GuidedStep
from rattle.objectives.n_fgsm import NoisyStep
from rattle.threat import Threat
from support.inner_attacks import problem


def early_stopped(threat: Threat) -> Attack:
    return EarlyStoppedPGD(pgd=PGD(threat=threat, steps=3, step_size=0.08), omega=0.1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("make", "reach"),
    [(early_stopped, 1), (lambda threat: GuidedStep(threat=threat), 1), (lambda threat: NoisyStep(threat=threat), 3)],
)
def test_the_points_lie_in_the_ball(make: Callable[[Threat], Attack], reach: int, norm: str) -> None:
    given, threat = problem(10), Threat(norm=norm, epsilon=0.1)
    x_adv = make(threat)(given.model, given.x, given.y)
    assert bool(Threat(norm=norm, epsilon=reach * 0.1).contains(x_adv, given.x).all())
    assert float(threat.distance(x_adv, given.x).max()) > 0.05
