"""N-FGSM beside a plain twin."""

import copy

import pytest
import torch
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.objectives.n_fgsm import NFGSM
from rattle.threat import Threat
from support.inner_attacks import assert_same_step, draws, our_step, problem

EPSILON = 0.1
ATTACK = PGD(threat=Threat(epsilon=EPSILON))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("classes", [3, 10, 100])
def test_loss_gradient_and_images_are_those_of_the_twin(classes: int) -> None:
    given = problem(classes)
    twin, x, y = copy.deepcopy(given.model).eval(), given.x, given.y
    noise = (2 * draws(14).uniform(*x.shape[1:]).double() - 1) * 2 * EPSILON
    start = (x + noise).clamp(0, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(twin(start), y), start)
    x_adv = (start.detach() + EPSILON * gradient.sign()).clamp(0, 1)
    assert float((x_adv - x).abs().max()) > 2 * EPSILON  # not projected
    twin.train()
    assert_same_step(our_step(NFGSM(), ATTACK, given), F.cross_entropy(twin(x_adv), y), twin, x_adv)
