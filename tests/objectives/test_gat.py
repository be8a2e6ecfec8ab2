"""GAT and GAT-TRADES beside a plain twin."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.objectives.base import Moment
from rattle.objectives.gat import GAT
from rattle.objectives.gat_trades import GATTrades
from rattle.threat import Threat
from support.inner_attacks import Problem, assert_same_step, draws, our_step, problem

EPSILON = 0.1
ATTACK = PGD(threat=Threat(epsilon=EPSILON))


def guided(model: nn.Module, given: Problem, *, weight: float) -> Tensor:
    """The published attack (l_inf), in evaluation mode."""
    model.eval()
    x, y = given.x, given.y
    start = (x + EPSILON / 2 * draws(len(x)).normal(*x.shape[1:]).double().sign()).clamp(0, 1).requires_grad_()
    p, z = model(x).detach().softmax(1), model(start)
    loss = F.cross_entropy(z, y) + weight * ((p - z.softmax(1)) ** 2).sum(1).mean()
    (gradient,) = torch.autograd.grad(loss, start)
    x_adv = (start.detach() + EPSILON * gradient.sign()).clamp(0, 1)
    model.train()
    return (x + (x_adv - x).clamp(-EPSILON, EPSILON)).clamp(0, 1)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("classes", [3, 10, 100])
@pytest.mark.parametrize(("epoch", "number", "weight"), [(0, 0, 10), (0, 7, 10), (86, 7, 40)])
@pytest.mark.parametrize("base", [GAT, GATTrades])
def test_loss_gradient_and_images_are_those_of_the_twin(
    base: type, epoch: int, number: int, weight: float, classes: int
) -> None:
    given = problem(classes)
    twin = copy.deepcopy(given.model)
    x_adv = guided(twin, given, weight=weight * (number % 2))
    z, z_adv = twin(given.x), twin(x_adv)
    if base is GAT:
        between = weight * ((z.softmax(1) - z_adv.softmax(1)) ** 2).sum(1).mean()
    else:
        between = 6 * F.kl_div(z_adv.log_softmax(1), z.softmax(1), reduction="batchmean")
    ours = our_step(base(), ATTACK, given, moment=Moment(epoch=epoch, epochs=100, step=number))
    assert_same_step(ours, F.cross_entropy(z, given.y) + between, twin, x_adv)
