"""One step of a method with teachers beside a literal twin: loss and gradients of all networks, in double precision."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.models.registry import create_model
from rattle.objectives.base import Objective, StepContext, total
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from rattle.training.step import step
from support.steps import step_inputs

CLASSES = (3, 10, 100)
N = 6
SMALL = PGD(threat=Threat(epsilon=0.2), steps=3, step_size=0.05, loss="kl", start="gaussian")
Networks = dict[str, nn.Module]
Twin = Callable[[Networks, Tensor, Tensor, Tensor], Tensor]  # networks, x, x', y -> the loss


def networks(classes: int, *, frozen: tuple[str, ...] = (), along: tuple[str, ...] = ()) -> Networks:
    """A model and its teachers in double precision, each with weights and statistics of its own."""
    torch.manual_seed(classes)
    found = {}
    for name in ("model", *frozen, *along):
        found[name] = create_model("cnn", classes=classes, channels=1, width=2).double()
        found[name](torch.rand(20, 1, 8, 8, dtype=torch.float64))
        found[name].requires_grad_(name not in frozen).train(name not in frozen)
    return found


def images(classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, x' and y."""
    torch.manual_seed(1)
    x = torch.rand(N, 1, 8, 8, dtype=torch.float64)
    return x, (x + 0.2 * torch.randn_like(x).sign()).clamp(0, 1), torch.arange(N) % classes


def streams() -> ImageStreams:
    return ImageStreams(5, torch.arange(N))


def our_step(objective: Objective, found: Networks, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    """The loss of the library's own step, which leaves gradients; at x' unless the objective attacks by itself."""
    teachers = {name: network for name, network in found.items() if name != "model"}
    attack = SMALL if type(objective).attack is not Objective.attack else lambda *args, **rest: x_adv
    context = StepContext(draws=streams(), teachers=teachers)
    return total(step(step_inputs(found["model"], objective, attack, x, y, context)))


def assert_same(objective: Objective, twin: Twin, found: Networks, classes: int) -> None:
    """Same loss, weight gradients and BatchNorm statistics of all networks; frozen ones get no gradient."""
    other, (x, x_adv, y) = copy.deepcopy(found), images(classes)
    loss = our_step(objective, found, x, x_adv, y)
    wanted = twin(other, x, x_adv, y)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-6, atol=1e-9)
    for name in found:
        assert found[name].training == other[name].training == any(p.requires_grad for p in found[name].parameters())
        for p, q in zip(found[name].parameters(), other[name].parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=1e-9)
            assert (p.grad is not None) == p.requires_grad
        torch.testing.assert_close(dict(found[name].named_buffers()), dict(other[name].named_buffers()))
