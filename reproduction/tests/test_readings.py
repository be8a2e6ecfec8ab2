"""The readings that only studies use, beside plain twins in double precision and numbers drawn at random."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import reproduction.readings  # noqa: F401
from rattle.forward import PairedForward
from rattle.losses import kl
from rattle.models import find_head
from rattle.objectives import Taylor, Trades
from rattle.objectives.base import total
from rattle.weights import Noise
from reproduction.readings.curvature import head_noise_trace
from reproduction.readings.variants import ReleasedLoss, head_curvature

ETA = {"order": 2, "eta": 0.7}


def network(classes: int) -> nn.Sequential:
    features = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Softplus(), nn.Flatten(), nn.Linear(27, 4), nn.Tanh())
    return nn.Sequential(features, nn.Linear(4, classes)).double().train()


def images(classes: int, n: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.rand(n, 1, 5, 5, dtype=torch.double)
    return x, x + 0.3 * torch.randn_like(x), torch.arange(n) % classes


def library(model: nn.Module, objective: Trades, noise: Noise, samples: int, data: tuple) -> dict[str, Tensor]:
    """The terms, for the draws of u of seed 0."""
    x, x_adv, y = data
    forward = PairedForward(model, objective.needs, find_head(model) if objective.needs.features else None)
    u = forward.draws(noise, samples, generator=torch.Generator().manual_seed(0))
    return objective(forward(x, x_adv, u), y)


def divergence(z: Tensor, z_adv: Tensor) -> Tensor:
    return F.kl_div(z_adv.log_softmax(1), z.log_softmax(1), log_target=True, reduction="batchmean")


def trace_twin(model: nn.Module, data: tuple) -> Tensor:
    """eta / 2 times the second derivative by t of KL at w + t u: a scalar differentiated twice, backwards."""
    x, x_adv, _ = data
    values, generator = [], torch.Generator().manual_seed(0)
    for _ in range(2):
        u = Noise(sigma=0.1)(model, generator=generator)
        t = torch.zeros((), dtype=torch.double, requires_grad=True)
        weights = {name: model.get_parameter(name) + t * delta for name, delta in u.items()}
        scalar = divergence(functional_call(model, weights, (x,)), functional_call(model, weights, (x_adv,)))
        (slope,) = torch.autograd.grad(scalar, t, create_graph=True)
        values.append(torch.autograd.grad(slope, t, create_graph=True)[0])
    return 0.35 * torch.stack(values).mean()


def head_noise_twin(model: nn.Module, data: tuple) -> Tensor:
    """(eta sigma^2 / 2) tr H, H the whole Hessian of the KL by the head's weights."""
    x, x_adv, _ = data
    features, head = model[0], model[1]
    h, h_adv = features(x), features(x_adv)

    def of(weight: Tensor) -> Tensor:
        return divergence(F.linear(h, weight, head.bias), F.linear(h_adv, weight, head.bias))

    hessian = torch.autograd.functional.hessian(of, head.weight, create_graph=True)
    size = head.weight.numel()
    return 0.35 * 0.1**2 * hessian.view(size, size).trace()


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize(("mode", "twin"), [("trace", trace_twin), ("head-noise", head_noise_twin)])
def test_the_second_derivative_of_the_kl_and_its_gradient_are_those_of_the_twin(mode: str, twin, classes: int) -> None:
    model, data = network(classes), images(classes)
    theirs = copy.deepcopy(model)
    terms = library(model, Trades(taylor=Taylor(mode=mode, **ETA)), Noise(sigma=0.1), 2, data)
    wanted = twin(theirs, data)
    torch.testing.assert_close(terms["second"], wanted, rtol=1e-9, atol=1e-11)
    terms["second"].backward()
    wanted.backward()
    for ours, p in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, p.grad, rtol=1e-8, atol=1e-10)


def test_half_the_trace_is_what_small_noise_adds_to_the_kl_on_average() -> None:
    """No derivative at all: the mean over pairs of u and -u of the KL at w + u, less that at w."""
    model, data, noise = network(3), images(3), Noise(sigma=1e-3)
    trace = library(model, Trades(taylor=Taylor(mode="trace", order=2, eta=6.0)), noise, 4, data)
    sampled = library(model, Trades(taylor=Taylor(mode="sampled-pairs", order=2)), noise, 4, data)
    assert trace["second"].item() == pytest.approx((sampled["zeroth"] - trace["zeroth"]).item(), rel=1e-3)


def test_noise_in_proportion_to_the_filters_weighs_the_rows_of_the_head() -> None:
    h, h_adv = torch.randn(2, 5, 4, dtype=torch.double)
    z, z_adv = torch.randn(2, 5, 3, dtype=torch.double)
    variance = torch.tensor([0.1, 0.2, 0.7], dtype=torch.double)
    draws = 60_000
    noise = variance.sqrt()[:, None] * torch.randn(draws, 3, 4, dtype=torch.double)
    noise = 1e-2 * torch.cat([noise, -noise])
    values = kl((z[:1] + noise @ h[0]).view(-1, 3), (z_adv[:1] + noise @ h_adv[0]).view(-1, 3))
    gain = float(values.mean() - kl(z[:1], z_adv[:1]).mean())
    assert gain == pytest.approx(float(0.5e-4 * head_noise_trace(h, h_adv, z, z_adv, variance)[0]), rel=0.04)


def test_the_second_derivative_by_the_head_is_a_block_of_the_hessian() -> None:
    h, z = torch.randn(6, 4, dtype=torch.double), torch.randn(6, 10, dtype=torch.double)
    y, found = torch.arange(6), head_curvature(h, z)
    for j in (0, 9):

        def of(row: Tensor, j: int = j) -> Tensor:
            change = torch.zeros_like(z)
            change[:, j] = h @ row
            return F.cross_entropy(z + change, y)

        block = torch.autograd.functional.hessian(of, torch.zeros(4, dtype=torch.double))
        assert float(found[j]) == pytest.approx(float(block.sum()), rel=1e-10)


@pytest.mark.parametrize("mode", ["head-derivative", "released-targets"])
def test_variants_of_head_differ_in_the_second_term_alone(mode: str) -> None:
    model, data = network(10), images(10)
    head = library(model, Trades(taylor=Taylor(order=2)), Noise(sigma=0), 1, data)
    other = library(model, Trades(taylor=Taylor(order=2, mode=mode)), Noise(sigma=0), 1, data)
    assert torch.equal(other["first"], head["first"])
    assert not torch.isclose(other["second"], head["second"])


def test_the_mixture_of_one_draw_is_half_the_loss_at_w_and_half_at_w_plus_u() -> None:
    model, data, noise = network(3), images(3), Noise(sigma=0.5)
    losses = {}
    for mode in ("sampled", "mixture"):
        losses[mode] = total(library(model, Trades(taylor=Taylor(order=1, mode=mode)), noise, 1, data)).item()
    plain = total(library(model, Trades(), noise, 1, data)).item()
    assert losses["mixture"] == pytest.approx((losses["sampled"] + plain) / 2)
    assert losses["sampled"] != pytest.approx(plain, rel=1e-3)


def test_the_release_weighs_the_clean_term_by_one_minus_eta() -> None:
    model, data = network(3), images(3)
    taylor = Taylor(order=2, eta=0.2)
    paper, release = (library(model, kind(taylor=taylor), Noise(sigma=0), 1, data) for kind in (Trades, ReleasedLoss))
    assert torch.allclose(release["clean"], 0.8 * paper["clean"])
    assert torch.equal(release["zeroth"], paper["zeroth"])
