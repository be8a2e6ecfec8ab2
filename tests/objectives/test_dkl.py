"""DKL beside a twin written from the formula, pair by pair; its class means are those of the epoch before."""

import pytest
import torch
from torch import Tensor, nn

from rattle.forward import Outputs
from rattle.objectives.base import Memory, Moment, StepContext, total
from rattle.objectives.dkl import DKL
from rattle.randomness import ImageStreams
from support.steps import assert_same_gradient

N = 6


def context(memory: dict[str, Tensor], epoch: int) -> StepContext:
    index = torch.arange(N)
    return StepContext(moment=Moment(epoch=epoch, epochs=9), draws=ImageStreams(0, index), memory=Memory(memory, index))


def twin(z: Tensor, z_adv: Tensor, y: Tensor, means: Tensor, objective: DKL) -> Tensor:
    """The loss with a loop over images and pairs of classes."""
    classes, pairs, weights = z.shape[1], torch.zeros((), dtype=z.dtype), 0.0
    clean, soft = torch.zeros_like(pairs), torch.zeros_like(pairs)
    for i in range(len(z)):
        w = means[y[i]] ** objective.gamma
        clean = clean - z[i].log_softmax(0)[y[i]] / len(z)
        soft = soft - (z[i].detach().softmax(0) * z_adv[i].log_softmax(0)).sum() / len(z)
        for j in range(classes):
            difference = (z[i, j] - z[i]) - (z_adv[i, j] - z_adv[i])
            pairs = pairs + (w[j] * w * difference**2).sum() / 4
            weights += float((w[j] * w).sum())
    return clean + objective.beta * pairs / weights + objective.alpha * soft


@pytest.mark.parametrize(
    ("classes", "settings"),
    [(3, {}), (10, {}), (100, {}), (10, {"gamma": 0.2, "temperature": 1.0}), (3, {"alpha": 1.0, "beta": 2.0})],
)
def test_loss_and_gradient_are_those_of_the_twin(classes: int, settings: dict) -> None:
    torch.manual_seed(classes)
    model, objective = nn.Linear(5, classes).double(), DKL(**settings)
    x, x_adv = torch.randn(2, N, 5, dtype=torch.float64)
    y = torch.arange(N) % classes
    sums = torch.rand(classes, classes, dtype=torch.float64)
    sums[1] = 0  # a class that was not seen
    memory = {"sums": torch.stack([sums, 7 * sums.flip(0)]), "epoch": torch.tensor([2.0])}
    loss = total(objective.terms(Outputs(model(x), model(x_adv)), y, context(memory, epoch=3)))
    means = sums / sums.sum(1, keepdim=True)
    means[1] = 1 / classes
    wanted = twin(model(x), model(x_adv), y, means, objective)
    assert_same_gradient(loss, wanted, model.parameters())


def test_the_classes_are_summed_over_an_epoch_and_used_in_the_next() -> None:
    torch.manual_seed(0)
    objective = DKL(temperature=4.0)
    first = objective.state(images=N, classes=3, batch=torch.Size((N, 1, 1, 1)))
    memory = {name: value.double() for name, value in first.items()}
    wanted: dict[int, Tensor] = {}
    for epoch in range(3):
        wanted[epoch] = torch.zeros(3, 3, dtype=torch.float64)
        for _ in range(2):
            z, z_adv = torch.randn(2, N, 3, dtype=torch.float64)
            y = (torch.arange(N) + epoch) % 3
            outputs, here = Outputs(z, z_adv), context(memory, epoch)
            objective.terms(Outputs(-3 * z, z_adv), y, here)  # as AWP does: leaves no trace
            terms = objective.terms(outputs, y, here)
            before = wanted[epoch - 1] if epoch else torch.ones(3, 3, dtype=torch.float64)
            means = before / before.sum(1, keepdim=True)
            assert float(total(terms)) == pytest.approx(float(twin(z, z_adv, y, means, objective)))
            objective.remember(outputs, y, here)
            for i in range(N):
                wanted[epoch][y[i]] += (z[i] / 4).softmax(0) / N
    torch.testing.assert_close(memory["sums"][0], wanted[2])
    torch.testing.assert_close(memory["sums"][1], wanted[1])
