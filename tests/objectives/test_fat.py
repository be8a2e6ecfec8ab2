"""FAT and FAT-TRADES beside a plain twin that attacks one image after the other."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.objectives.base import Moment, StepContext
from rattle.objectives.fat import FAT
from rattle.objectives.fat_trades import FATTrades
from rattle.threat import Threat
from support.inner_attacks import SEED, ImageStreams, assert_same_step, our_step, problem

THREAT = Threat(epsilon=0.1)
BASES = {
    "fat": (FAT(), PGD(threat=THREAT, steps=8, step_size=0.02)),
    "fat-trades": (FATTrades(), PGD(threat=THREAT, steps=8, step_size=0.02, loss="kl", start="gaussian")),
}


def friendly(model: nn.Module, x: Tensor, y: Tensor, i: int, pgd: PGD, *, tau: int, omega: float) -> tuple[Tensor, int]:
    """Algorithm 1 of the paper for image i (l_inf), and the steps it made."""
    random, shape, epsilon = ImageStreams(SEED, torch.tensor([i])), x.shape[1:], pgd.threat.epsilon
    x, y = x[i : i + 1], y[i : i + 1]
    if pgd.start == "uniform":
        x_adv = x + epsilon * (2 * random.uniform(*shape).double() - 1)
    else:
        x_adv = x + 0.001 * random.normal(*shape).double()
    x_adv = x_adv.clamp(0, 1)
    for k in range(pgd.steps):
        x_adv = x_adv.detach().requires_grad_()
        z = model(x_adv)
        if int(z.argmax()) != int(y):
            if tau == 0:
                return x_adv.detach(), k
            tau -= 1
        if pgd.loss == "ce":
            loss = F.cross_entropy(z, y)
        else:
            loss = F.kl_div(z.log_softmax(1), model(x).detach().softmax(1), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x_adv)
        x_adv = x_adv.detach() + pgd.step_size * gradient.sign()
        if omega:
            x_adv = x_adv + omega * random.normal(*shape).double()
        x_adv = torch.min(torch.max(x_adv, x - epsilon), x + epsilon).clamp(0, 1)
    return x_adv.detach(), pgd.steps


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("classes", [3, 10, 100])
@pytest.mark.parametrize("tau", [0, 2])
@pytest.mark.parametrize("base", BASES)
def test_loss_gradient_and_images_are_those_of_the_twin(base: str, tau: int, classes: int) -> None:
    given, (objective, pgd) = problem(classes), BASES[base]
    objective = replace(objective, tau=tau)
    twin = copy.deepcopy(given.model).eval()
    rows = range(len(given.x))
    found = [friendly(twin, given.x, given.y, i, pgd, tau=tau, omega=objective.omega) for i in rows]
    assert len({steps for _, steps in found}) > 2  # they stop at different steps
    x_adv = torch.cat([image for image, _ in found])
    twin.train()
    if base == "fat":
        loss = F.cross_entropy(twin(x_adv), given.y)
    else:
        z, z_adv = twin(given.x), twin(x_adv)
        loss = F.cross_entropy(z, given.y) + 6 * F.kl_div(z_adv.log_softmax(1), z.softmax(1), reduction="batchmean")
    assert_same_step(our_step(objective, pgd, given), loss, twin, x_adv)


@pytest.mark.parametrize(
    ("objective", "epochs", "rises"), [(FAT(), 120, [50, 90]), (FAT(), 12, [5, 9]), (FATTrades(), 85, [30, 50, 70])]
)
def test_tau_grows_at_the_published_epochs(objective: FAT, epochs: int, rises: list[int]) -> None:
    for epoch in range(epochs):
        attack = objective.attack(PGD(), StepContext(moment=Moment(epoch=epoch, epochs=epochs)))
        assert attack.keywords["tau"] == sum(epoch >= rise for rise in rises)
