"""ReBAT beside a twin written from the formula; its teacher is the average of the run's own weights."""

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from rattle.errors import RattleError
from rattle.forward import PairedForward
from rattle.objectives.base import total
from rattle.objectives.rebat import ReBAT
from rattle.weights import EMA
from support.steps import assert_same_gradient
from support.training import tiny


def network(classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, classes)).double()


def average_of(model: nn.Module, *others: nn.Module) -> AveragedModel:
    average = EMA(decay=0.5).averaged(model)
    for each in (model, *others):
        average.update_parameters(each)
    return average


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_loss_and_gradient_are_those_of_the_twin(classes: int) -> None:
    model, average = network(classes, 1), average_of(network(classes, 2), network(classes, 3))
    x, y = torch.rand(7, 1, 3, 3, dtype=torch.float64), torch.arange(7) % classes
    objective = ReBAT(weight=1.7)
    outputs = PairedForward(model, objective.needs, average=average)(x, x)
    loss = total(objective(outputs, y))
    mean = {name: value.detach() for name, value in average.module.state_dict().items()}
    wanted = torch.zeros((), dtype=torch.float64)
    q, p = twin_softmax(mean, x), model(x).softmax(1)
    for i in range(7):
        wanted = wanted - p[i, y[i]].log() / 7
        for k in range(classes):
            wanted = wanted + 1.7 / 7 * q[i, k] * (q[i, k].log() - p[i, k].log())
    assert_same_gradient(loss, wanted, model.parameters())
    assert all(p.grad is None for p in average.parameters())


def twin_softmax(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The average network's probabilities by its own running statistics, written out."""
    h = x.flatten(1) @ w["1.weight"].T + w["1.bias"]
    h = (h - w["2.running_mean"]) / (w["2.running_var"] + 1e-5).sqrt() * w["2.weight"] + w["2.bias"]
    return (h.tanh() @ w["4.weight"].T + w["4.bias"]).softmax(1)


def test_it_is_at_until_the_average_begins() -> None:
    model, objective = network(3, 1), ReBAT()
    x, y = torch.rand(4, 1, 3, 3, dtype=torch.float64), torch.arange(4) % 3
    outputs = PairedForward(model, objective.needs, average=EMA().averaged(model))(x, x)
    assert not outputs.taught_adv
    terms = {name: float(value.detach()) for name, value in objective(outputs, y).items()}
    assert terms["average"] == 0
    assert terms["zeroth"] == pytest.approx(float(nn.functional.cross_entropy(model(x), y).detach()))


def test_a_run_without_an_average_is_refused() -> None:
    with pytest.raises(RattleError, match=r"--average.kind EMA"):
        tiny("rebat", average=None)
