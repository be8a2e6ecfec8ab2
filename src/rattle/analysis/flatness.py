"""How flat the loss is, in numbers: local Lipschitz constant, largest Hessian eigenvalues, rise under weight noise.

The paper argues by flatness (Section 3; Figs. 2 and 3); these numbers accompany the figures. All are computed in
evaluation mode, with BatchNorm's running statistics, and leave the model unchanged. Shared parameters are explained in
`rattle.analysis.landscape`; `generator` draws starting points, starting vectors or weight noise. Power iterations stop
after `iterations` steps, or when every relative residual is at most TOLERANCE.
"""

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.functional import vhp

from rattle.analysis.landscape import as_array, loss_gradient, losses_at, mean_loss, random_like, weight_gradient
from rattle.attacks.base import attack_mode
from rattle.inputs import check_batch
from rattle.randomness import Randomness, streams
from rattle.runs.arrays import Array
from rattle.runs.io import Plain
from rattle.threat import Threat
from rattle.weights import Noise, perturbed

HESSIAN_BATCH = 256
STARTS, ASCENT_STEPS = 4, 5  # of the ascents behind the Lipschitz constant
RESIDUAL_TOLERANCE = 1e-2
PAPER_NOISE = Noise()  # N(0, 0.01^2), Section 4
Apply = Callable[[Tensor], Tensor]  # v [n, d] -> Hv [n, d], each row with its own Hessian


def hessian_batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(HESSIAN_BATCH), y.split(HESSIAN_BATCH), strict=True)


def local_lipschitz(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    generator: Randomness = None,
) -> Array:
    """A lower bound of each image's local Lipschitz constant, [n], in the threat's norm.

    It is the largest dual norm of grad_x loss met on 4 ascents of 5 steps in the threat's ball, the first from x.

    Why the gradient and not |f(x) - f(x')| / ||x - x'||: on a convex ball the Lipschitz constant in a norm is the
    supremum of the gradient's dual norm (l_1 for l_inf, l_2 for l_2), while a quotient averages the gradient over a
    segment and can only be smaller. A maximum over points visited is a lower bound of that supremum.
    """
    check_batch(x, y)
    draws = streams(generator, len(x), x.device)
    largest = x.new_zeros(len(x))
    with attack_mode(model):
        for start in range(STARTS):
            point = x if start == 0 else threat.random_start(x, draws)
            for step in range(ASCENT_STEPS + 1):
                gradient = torch.cat([loss_gradient(model, *batch) for batch in hessian_batches(point, y)])
                steepest = threat.ascend(torch.zeros_like(x), gradient, 1.0)  # of norm 1, so the product is dual
                largest = torch.maximum(largest, (gradient * steepest).flatten(1).sum(1))
                if step < ASCENT_STEPS:
                    point = threat.project(threat.ascend(point, gradient, 2 * threat.epsilon / ASCENT_STEPS), x)
    return as_array(largest).astype(np.float64)


def power_iteration(apply: Apply, v: Tensor, shift: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The eigenvalue of H - shift that is largest in magnitude, and its vector: [n], [n, d]."""
    value = torch.zeros_like(shift)
    for _ in range(iterations):
        v = v / v.norm(dim=1, keepdim=True).clamp_min(1e-30)
        hv = apply(v) - shift[:, None] * v
        value = (v * hv).sum(1)
        residual = (hv - value[:, None] * v).norm(dim=1)
        if bool((residual <= RESIDUAL_TOLERANCE * value.abs()).all()):
            break
        v = torch.where(hv.norm(dim=1, keepdim=True) > 1e-30, hv, v)
    return value, v


def largest_eigenvalue(apply: Apply, v: Tensor, iterations: int) -> Tensor:
    """The algebraically largest eigenvalue of each row's Hessian, [n], from starts v [n, d].

    Power iteration finds the largest in magnitude; where that is negative, a second run on H - value * I, which has no
    negative eigenvalue left, finds the largest itself.
    """
    value, vector = power_iteration(apply, v, v.new_zeros(len(v)), iterations)
    shift = value.clamp_max(0)
    if bool((shift < 0).any()):
        start = torch.where((shift < 0)[:, None], v, vector)
        value, _ = power_iteration(apply, start, shift, iterations)
        value = value + shift
    return value


def input_curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int = 100,
    generator: Randomness = None,
) -> Array:
    """Largest eigenvalue of d^2 loss / dx^2 of each image, [n]; a batch iterates at once, as images do not mix."""
    check_batch(x, y)
    starts = streams(generator, len(x), x.device).normal(*x.shape[1:]).to(x)
    values = []
    with attack_mode(model):
        for (xs, ys), start in zip(hessian_batches(x, y), starts.split(HESSIAN_BATCH), strict=True):
            apply = partial(hessian_product, model, xs, ys)
            values.append(largest_eigenvalue(apply, start.flatten(1), iterations))
    return as_array(torch.cat(values)).astype(np.float64)


def hessian_product(model: nn.Module, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """Each image's Hessian times its row of v, [n, d]."""
    return vhp(lambda points: losses_at(model, points, y).sum(), x, v.view_as(x))[1].flatten(1)  # type: ignore[union-attr]


def weight_curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int = 100,
    generator: torch.Generator | None = None,
) -> float:
    """Largest eigenvalue of the Hessian of the mean loss over all parameters, also those that are not trained."""
    check_batch(x, y)
    model = copy.deepcopy(model).eval().requires_grad_()
    weights = list(model.parameters())

    def apply(v: Tensor) -> Tensor:
        total = torch.zeros_like(v)
        for xs, ys in hessian_batches(x, y):
            loss = losses_at(model, xs, ys).sum() / len(x)
            total += weight_gradient(weight_gradient(loss, weights, again=True) @ v[0], weights)
        return total

    with torch.enable_grad():
        w = torch.cat([p.detach().flatten() for p in weights])
        return float(largest_eigenvalue(apply, random_like(w[None], generator), iterations))


def noise_rise(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    noise: Noise = PAPER_NOISE,
    draws: int = 20,
    generator: torch.Generator | None = None,
) -> Array:
    """How much the mean loss rises from w to w + u, [draws], for draws of u from `noise`."""
    check_batch(x, y)
    rises = np.zeros(draws)
    with attack_mode(model):
        at_w = mean_loss(model, x, y)
        for draw in range(draws):
            with perturbed(model, noise(model, generator=generator)):
                rises[draw] = mean_loss(model, x, y) - at_w
    return rises


def flatness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    iterations: int = 100,
    draws: int = 20,
    seed: int = 0,
) -> Plain:
    """All four as plain numbers, means over images or draws.

    `threat` is the ball of the Lipschitz constant, `draws` counts the samples of weight noise; the same seed gives
    every model compared the same random numbers.
    """

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    rises = noise_rise(model, x, y, draws=draws, generator=generator())
    return {
        "lipschitz": float(local_lipschitz(model, x, y, threat=threat, generator=generator()).mean()),
        "lipschitz_norm": threat.norm,
        "lipschitz_epsilon": threat.epsilon,
        "input_eigenvalue": float(input_curvature(model, x, y, iterations=iterations, generator=generator()).mean()),
        "weight_eigenvalue": weight_curvature(model, x, y, iterations=iterations, generator=generator()),
        "noise_rise": float(rises.mean()),
        "noise_rise_error": float(rises.std(ddof=1) / math.sqrt(draws)),
        "noise_sigma": PAPER_NOISE.sigma,
    }
