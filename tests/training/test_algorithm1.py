"""The library agrees with the readable specification, examples/algorithm1.py."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest
import torch

from rattle.attacks import PGD
from rattle.objectives import Taylor, Trades
from rattle.objectives.base import StepContext
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from rattle.training.step import step
from rattle.weights import AWP, Noise
from support.steps import step_inputs

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
        context = StepContext(draws=ImageStreams(i, torch.arange(len(x))))
        drawn = {"noise": Noise(sigma=0.01), "shared": torch.Generator().manual_seed(i)}
        awp = AWP(gamma=gamma, warmup=0) if gamma else None
        terms = step(step_inputs(ours, objective, INNER, x, y, context, awp=awp, **drawn))
        optimizers[0].step()
        assert {k: float(v) for k, v in terms.items()} == pytest.approx(expected, rel=1e-8, abs=1e-9)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
        for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b)
    assert not any(module._forward_pre_hooks for module in ours.modules())  # which read the input of the head
