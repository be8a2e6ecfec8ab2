"""The library agrees with the readable specification, examples/algorithm1.py."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.forward import PairedForward
from rattle.models import find_head
from rattle.models.registry import create_model
from rattle.objectives import Taylor, Trades
from rattle.objectives.base import Objective, StepContext
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from rattle.training.step import StepInputs, step
from rattle.weights import AWP, Noise

SOURCE = Path(__file__).parents[2] / "examples" / "algorithm1.py"
spec = importlib.util.spec_from_file_location("algorithm1", SOURCE)
assert spec is not None
algorithm1 = importlib.util.module_from_spec(spec)
assert spec.loader is not None
spec.loader.exec_module(algorithm1)

INNER = PGD(threat=Threat(epsilon=0.1), steps=4, step_size=0.03, loss="kl", start="gaussian")


def minibatch(n: int = 12, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """In double precision: the inner loop takes signs, and two ways of rounding would flip those of tiny gradients."""
    return torch.rand(n, 1, 8, 8, dtype=torch.float64), torch.arange(n) % classes


def our_step(
    model: nn.Module, objective: Objective, x: Tensor, y: Tensor, seed: int = 0, **settings: Any
) -> dict[str, Tensor]:
    needs = objective.needs
    given = StepInputs(
        x=x,
        y=y,
        forward=PairedForward(model, needs, find_head(model) if needs.features else None),
        attack=INNER,
        objective=objective,
        context=StepContext(draws=ImageStreams(seed, torch.arange(len(x)))),
        shared=torch.Generator().manual_seed(seed),
        **{"noise": Noise(sigma=0.01), **settings},
    )
    return step(given)


@pytest.mark.parametrize("gamma", [None, 0.01])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_library_takes_the_steps_of_algorithm_1(order: int, gamma: float | None) -> None:
    ours = algorithm1.Network().double()
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9) for m in (ours, theirs)]
    objective = Trades(taylor=Taylor(order=order, eta=0.2 if order else None))
    for i in range(4):
        x, y = minibatch()
        noise = ImageStreams(i, torch.arange(len(x))).normal(1, 8, 8)
        expected = algorithm1.step(
            theirs, optimizers[1], x, y, noise, torch.Generator().manual_seed(i), order=order, gamma=gamma,
            epsilon=0.1, step_size=0.03, K=4,
        )  # fmt: skip
        optimizers[0].zero_grad()
        terms = our_step(ours, objective, x, y, i, awp=AWP(gamma=gamma, warmup=0) if gamma else None)
        optimizers[0].step()
        assert {k: float(v) for k, v in terms.items()} == pytest.approx(expected, rel=1e-8, abs=1e-9)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
        for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def test_awp_adds_one_forward_pair_and_one_backward() -> None:
    model = create_model("cnn", classes=4, channels=1, width=4).double()
    count = {"forward": 0, "backward": 0}
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_hook(lambda layer, *_: count.update(forward=count["forward"] + layer.training))
    first.weight.register_hook(lambda _: count.update(backward=count["backward"] + 1))
    our_step(model, Trades(taylor=Taylor(order=2, eta=0.2)), *minibatch(), awp=AWP(gamma=0.01, warmup=0))
    assert count == {"forward": 4, "backward": 2}
