"""Every reading of the Taylor terms beside a plain twin in double precision: the loss and its gradient by the weights.

The twins differentiate backwards, twice where a second derivative is wanted; the library does it forwards or in closed
form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from rattle.forward import PairedForward
from rattle.losses import kl, kl_of_small
from rattle.models.head import find_head
from rattle.objectives import Taylor, Trades
from rattle.objectives.base import total
from rattle.weights import Noise

CLASSES = [3, 10, 100]
Weights = dict[str, Tensor]


def network(classes: int) -> nn.Sequential:
    features = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4), nn.Tanh()
    )
    return nn.Sequential(features, nn.Linear(4, classes)).double().train()


class PlainNorm(nn.Module):
    """BatchNorm by the batch, written out: torch's own is wrong from its third derivative on, backwards too."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((0, 2, 3), keepdim=True)
        deviation = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True).add(1e-5).sqrt()
        return (x - mean) / deviation * self.weight[:, None, None] + self.bias[:, None, None]


def plain_copy(model: nn.Sequential) -> nn.Sequential:
    twin = copy.deepcopy(model)
    twin[0][1] = PlainNorm(twin[0][1])
    return twin


def images(classes: int, n: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.rand(n, 1, 5, 5, dtype=torch.double)
    return x, x + 0.3 * torch.randn_like(x), torch.arange(n) % classes


def library(model: nn.Module, taylor: Taylor, noise: Noise, samples: int, data: tuple) -> dict[str, Tensor]:
    """The terms, for the draws of u of seed 0."""
    objective, (x, x_adv, y) = Trades(taylor=taylor), data
    forward = PairedForward(model, objective.needs, find_head(model) if objective.needs.features else None)
    u = forward.draws(noise, samples, generator=torch.Generator().manual_seed(0))
    return objective(forward(x, x_adv, u), y)


def logits_at(model: nn.Module, x: Tensor, weights: Weights) -> Tensor:
    return functional_call(model, {**dict(model.named_parameters()), **weights}, (x,))


def divergence(z: Tensor, z_adv: Tensor) -> Tensor:
    return F.kl_div(z_adv.log_softmax(1), z.log_softmax(1), log_target=True, reduction="batchmean")


def draws_of(model: nn.Module, noise: Noise, samples: int) -> list[Weights]:
    """The draws of u of seed 0."""
    generator = torch.Generator().manual_seed(0)
    return [noise(model, generator=generator) for _ in range(samples)]


def moved(model: nn.Module, u: Weights, t: Tensor | float) -> Weights:
    return {name: p + t * u[name] for name, p in model.named_parameters() if name in u}


def derivatives(model: nn.Module, x: Tensor, u: Weights) -> list[Tensor]:
    """d/dt and d^2/dt^2 of the logits at w + t u, by differentiating backwards."""

    def first(t: Tensor) -> Tensor:
        return torch.autograd.functional.jvp(
            lambda s: logits_at(model, x, moved(model, u, s)), t, torch.ones_like(t), create_graph=True
        )[1]

    zero = torch.zeros((), dtype=torch.double)
    return [first(zero), torch.autograd.functional.jvp(first, zero, torch.ones_like(zero), create_graph=True)[1]]


def exact_twin(model: nn.Module, taylor: Taylor, draws: list[Weights], data: tuple) -> Tensor:
    x, x_adv, _ = data
    loss = torch.zeros((), dtype=torch.double)
    for u in draws:
        pairs = zip(derivatives(model, x, u), derivatives(model, x_adv, u), strict=True)
        first, second = (divergence(a, b) for a, b in pairs)
        loss = loss + (taylor.weight * first + taylor.weight / 2 * second) / len(draws)
    return loss


def smoothing_twin(model: nn.Module, taylor: Taylor, draws: list[Weights], data: tuple) -> Tensor:
    x, x_adv, y = data
    z, z_adv = logits_at(model, x, {}), logits_at(model, x_adv, {})
    classes = z.shape[1]
    rows = torch.full_like(z, (1 - 2 / classes) / (classes - 1)).scatter(1, y[:, None], 2 / classes)
    both = sum(F.kl_div(logits.log_softmax(1), rows, reduction="batchmean") for logits in (z, z_adv))
    return (taylor.weight + taylor.weight / 2) * both / 2


def sampled_twin(model: nn.Module, taylor: Taylor, draws: list[Weights], data: tuple) -> Tensor:
    """What `sampled` puts into the place of 6 KL, less that, which every twin is added to."""
    x, x_adv, _ = data
    at_w = divergence(logits_at(model, x, {}), logits_at(model, x_adv, {}))
    weights = [moved(model, u, 1) for u in draws]
    at_u = torch.stack([divergence(logits_at(model, x, w), logits_at(model, x_adv, w)) for w in weights]).mean()
    return 6 * (at_u - at_w)


ETA = {"order": 2, "eta": 0.7}
READINGS: dict[str, tuple[Taylor, int, Callable[..., Tensor]]] = {
    "exact": (Taylor(mode="exact", **ETA), 2, exact_twin),
    "smoothing": (Taylor(mode="smoothing", **ETA), 1, smoothing_twin),
    "sampled": (Taylor(mode="sampled", order=1), 2, sampled_twin),
}


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", READINGS)
def test_a_reading_and_its_gradient_are_those_of_its_twin(name: str, classes: int) -> None:
    taylor, samples, twin = READINGS[name]
    model, data, noise = network(classes), images(classes), Noise(sigma=0.1)
    theirs = plain_copy(model)
    terms = library(model, taylor, noise, samples, data)
    assert int(model[0][1].num_batches_tracked) == 2  # only the two forwards at w move the statistics
    total(terms).backward()
    z, z_adv = (logits_at(theirs, part, {}) for part in data[:2])
    wanted = F.cross_entropy(z, data[2]) + 6 * divergence(z, z_adv)
    wanted = wanted + twin(theirs, taylor, draws_of(theirs, noise, samples), data)
    torch.testing.assert_close(total(terms), wanted, rtol=1e-9, atol=1e-11)
    wanted.backward()
    for ours, p in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, p.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("size", [1e-12, 1e-8, 1e-5, 1e-2, 0.1, 1.0, 50.0])
def test_the_kl_of_small_vectors_is_exact_in_single_precision(size: float, classes: int) -> None:
    a, b = (size * torch.randn(2, 16, classes)).requires_grad_(), None
    found = kl_of_small(*a)
    (gradient,) = torch.autograd.grad(found.sum(), a)
    b = a.detach().double().requires_grad_()
    wanted = kl_of_small(*b)
    (wanted_gradient,) = torch.autograd.grad(wanted.sum(), b)
    assert bool((found >= 0).all())
    assert float((found.double() - wanted).detach().norm() / wanted.detach().norm()) < 5e-5
    assert float((gradient.double() - wanted_gradient).norm() / wanted_gradient.norm()) < 5e-6
    if size >= 1e-2:
        torch.testing.assert_close(wanted, kl(*b), rtol=1e-8, atol=0)
    else:  # to leading order: half the variance, under equal weights, of a - b
        half = 0.5 * (b[0] - b[1]).var(1, correction=0)
        torch.testing.assert_close(wanted, half, rtol=20 * size + 1e-12, atol=0)


@pytest.mark.parametrize("mode", ["exact", "sampled"])
def test_modes_keep_their_digits_in_single_precision(mode: str) -> None:
    """At the sigma of the authors' release, where second derivatives are of the order of 1e-8."""
    model, data, taylor = network(10), images(10), Taylor(order=2, eta=1.0, mode=mode)
    single, noise = copy.deepcopy(model).float(), Noise(sigma=1e-4)
    terms = library(model, taylor, noise, 1, data)
    short = library(single, taylor, noise, 1, (*(part.float() for part in data[:2]), data[2]))
    for name, value in terms.items():
        assert short[name].item() == pytest.approx(value.item(), rel=1e-3), name
        (gradient,) = torch.autograd.grad(value, model[0][0].weight, retain_graph=True)
        (short_gradient,) = torch.autograd.grad(short[name], single[0][0].weight, retain_graph=True)
        assert float((short_gradient.double() - gradient).norm() / gradient.norm()) < 1e-3, name


def test_smoothing_takes_mixed_images() -> None:
    """Their labels are rows of probabilities: the soft labels of their classes in the same proportion."""
    model, (x, x_adv, y) = network(3), images(3)
    taylor = Taylor(order=1, mode="smoothing")
    hard = library(model, taylor, Noise(sigma=0), 1, (x, x_adv, y))
    soft = library(model, taylor, Noise(sigma=0), 1, (x, x_adv, F.one_hot(y, 3).double()))
    assert torch.allclose(hard["first"], soft["first"])
