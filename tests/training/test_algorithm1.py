"""The library, the readable specification (examples/algorithm1.py) and the authors' algorithm agree."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.attacks import PGD
from rattle.forward import PairedForward
from rattle.models import find_head
from rattle.models.registry import create_model
from rattle.objectives import AT, Taylor, Trades
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.threat import Threat
from rattle.training.step import step, total
from rattle.weights import AWP, Noise
from reproduction.bench import reference

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
    forward = PairedForward(ours, objective.needs, ours.head)
    for i in range(4):
        x, y = minibatch()
        noise = ImageStreams(i, torch.arange(len(x))).normal(1, 8, 8)
        expected = algorithm1.step(
            theirs, optimizers[1], x, y, noise, torch.Generator().manual_seed(i), order=order, gamma=gamma,
            epsilon=0.1, step_size=0.03, K=4,
        )  # fmt: skip
        optimizers[0].zero_grad()
        terms = step(
            forward, x, y, attack=INNER, noise=Noise(sigma=0.01), objective=objective,
            awp=AWP(gamma=gamma, warmup=0) if gamma else None,
            shared=torch.Generator().manual_seed(i), private=ImageStreams(i, torch.arange(len(x))),
        )  # fmt: skip
        optimizers[0].step()
        assert {k: float(v) for k, v in terms.items()} == pytest.approx(expected, rel=1e-8, abs=1e-9)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
        for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b)


class Counter:
    """Counts a model's forwards in train mode, and its weights' backwards, by hooks on the first convolution."""

    def __init__(self, model: nn.Module) -> None:
        self.forwards = self.backwards = 0
        first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
        first.register_forward_hook(lambda m, _, out: self.count_forward(m))
        first.weight.register_hook(lambda _: self.count_backward())

    def count_forward(self, layer: nn.Module) -> None:
        self.forwards += layer.training

    def count_backward(self) -> None:
        self.backwards += 1


def test_released_mode_is_the_authors_algorithm_in_two_forwards_and_one_backward() -> None:
    recipe = get_recipe("digits-linf-cnn-trades-2nd-released")
    ours = create_model("cnn", classes=10, channels=1, width=8).double()
    theirs = copy.deepcopy(ours)
    x, y = minibatch(20, 10)
    counters = Counter(ours), Counter(theirs)
    threat = recipe.attack.threat
    expected = reference.released_step(
        theirs, find_head(theirs), x, y, epsilon=threat.epsilon, step_size=recipe.attack.step_size, steps=10,
        sigma=1e-4, eta=0.2, draws=ImageStreams(5, torch.arange(20)), generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    forward = PairedForward(ours, recipe.objective.needs, find_head(ours))
    terms = step(
        forward, x, y, attack=recipe.attack, noise=recipe.noise, objective=recipe.objective, awp=None,
        shared=torch.Generator().manual_seed(1), private=ImageStreams(5, torch.arange(20)),
    )  # fmt: skip
    torch.testing.assert_close(total(terms), expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)
    assert (counters[0].forwards, counters[0].backwards) == (2, 1)
    assert (counters[1].forwards, counters[1].backwards) == (8, 3)


@pytest.mark.parametrize("mode", ["exact", "sampled"])
@pytest.mark.parametrize("objective", [Trades, AT])
def test_every_reading_trains_on_every_base(mode: str, objective: type) -> None:
    model = create_model("cnn", classes=4, channels=1, width=4).double()
    chosen = objective(taylor=Taylor(order=2, eta=0.2, mode=mode))
    x, y = minibatch()
    terms = step(
        PairedForward(model, chosen.needs, None), x, y, attack=INNER, noise=Noise(sigma=1e-3), objective=chosen,
        awp=AWP(gamma=0.01, warmup=0), shared=torch.Generator().manual_seed(0),
        private=ImageStreams(0, torch.arange(len(x))), noise_samples=2 if mode == "sampled" else 1,
    )  # fmt: skip
    assert all(torch.isfinite(value) for value in terms.values())
    assert ("second" in terms) == (mode == "exact")
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_awp_adds_one_forward_pair_and_one_backward() -> None:
    model = create_model("cnn", classes=4, channels=1, width=4).double()
    objective = Trades(taylor=Taylor(order=2, eta=0.2))
    x, y = minibatch()
    counter = Counter(model)
    step(
        PairedForward(model, objective.needs, find_head(model)), x, y, attack=INNER, noise=Noise(), objective=objective,
        awp=AWP(gamma=0.01, warmup=0), shared=torch.Generator().manual_seed(0),
        private=ImageStreams(0, torch.arange(len(x))),
    )  # fmt: skip
    assert (counter.forwards, counter.backwards) == (4, 2)
