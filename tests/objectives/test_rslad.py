"""RSLAD beside a literal twin: a teacher's probabilities inside and outside."""

import copy

import pytest
import torch
from torch import Tensor

from rattle.objectives.rslad import RSLAD
from support.twins import CLASSES, SMALL, N, Networks, assert_same, networks, streams


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum()


def attacked(found: Networks, x: Tensor) -> Tensor:
    """x' by signed steps up KL(p_T(x) || p(x')), from x + 0.001 N(0, I), statistics as in evaluation."""
    model, taught = copy.deepcopy(found["model"]).eval(), found["robust"](x).softmax(1)
    x_adv = x + 0.001 * streams().normal(*x.shape[1:]).double()
    for _ in range(SMALL.steps):
        x_adv.requires_grad_()
        loss = sum(divergence(p, q.softmax(0)) for p, q in zip(taught, model(x_adv), strict=True))
        (gradient,) = torch.autograd.grad(loss, x_adv)
        x_adv = x_adv.detach() + SMALL.step_size * gradient.sign()
        x_adv = torch.minimum(torch.maximum(x_adv, x - 0.2), x + 0.2).clamp(0, 1)
    return x_adv


@pytest.mark.parametrize("classes", CLASSES)
def test_the_attack_and_the_loss_are_the_formula(classes: int) -> None:
    def twin(found: Networks, x: Tensor, _: Tensor, y: Tensor) -> Tensor:
        x_adv, taught = attacked(found, x), found["robust"](x)
        z, z_adv, loss = found["model"](x), found["model"](x_adv), 0.0
        for i in range(N):
            p = taught[i].softmax(0)
            loss = loss + (5 * divergence(p, z_adv[i].softmax(0)) + divergence(p, z[i].softmax(0))) / (6 * N)
        return loss

    assert_same(RSLAD(), twin, networks(classes, frozen=("robust",)), classes)
