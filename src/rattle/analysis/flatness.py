"""How flat the loss is, in numbers: local Lipschitz constant, largest Hessian eigenvalues, rise under weight noise.

The paper argues by flatness (Section 3; Figs. 2 and 3); these numbers accompany the figures. All are computed in
evaluation mode, with BatchNorm's running statistics, and leave the model unchanged. Shared parameters are explained in
`rattle.analysis.landscape`; `generator` draws starting points, starting vectors or weight noise. Power iterations stop
after `iterations` steps, or when every relative residual is at most `tolerance`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.functional import vhp

from rattle import losses
from rattle.analysis.landscape import (
    Loss,
    as_array,
    checked_logits,
    input_gradient,
    mean_loss,
    random_like,
)
from rattle.attacks.base import attack_mode
from rattle.inputs import check_batch, check_labels
from rattle.randomness import Randomness, streams
from rattle.runs.arrays import Array
from rattle.threat import Threat
from rattle.weights import Noise, eval_mode, perturbed

BATCH_SIZE = 256
STARTS, STEPS = 4, 5  # of the ascents behind the Lipschitz constant
PAPER_NOISE = Noise()  # N(0, 0.01^2), Section 4
Apply = Callable[[Tensor], Tensor]  # v [n, d] -> Hv [n, d], each row with its own Hessian


def batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(BATCH_SIZE), y.split(BATCH_SIZE), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curvature:
    """Largest Hessian eigenvalues: one per image in input space, one altogether in weight space."""

    values: Array  # [n] or [1]
    residuals: Array  # ||Hv - value v|| over the largest |eigenvalue|: how far from converged


def local_lipschitz(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    generator: Randomness = None,
    loss: Loss = losses.ce,
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
            for step in range(STEPS + 1):
                gradient = torch.cat([input_gradient(model, *batch, loss) for batch in batches(point, y)])
                steepest = threat.ascend(torch.zeros_like(x), gradient, 1.0)  # of norm 1, so the product is dual
                largest = torch.maximum(largest, (gradient * steepest).flatten(1).sum(1))
                if step < STEPS:
                    point = threat.project(threat.ascend(point, gradient, 2 * threat.epsilon / STEPS), x)
    return as_array(largest).astype(np.float64)


def power_iteration(
    apply: Apply, v: Tensor, shift: Tensor, *, iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The eigenvalue of H - shift that is largest in magnitude, ||residual||, and the vector: [n], [n], [n, d]."""
    value, residual = torch.zeros_like(shift), torch.zeros_like(shift)
    for _ in range(iterations):
        v = v / v.norm(dim=1, keepdim=True).clamp_min(1e-30)
        hv = apply(v) - shift[:, None] * v
        value = (v * hv).sum(1)
        residual = (hv - value[:, None] * v).norm(dim=1)
        if bool((residual <= tolerance * value.abs()).all()):
            break
        v = torch.where(hv.norm(dim=1, keepdim=True) > 1e-30, hv, v)
    return value, residual, v


def largest_eigenvalue(apply: Apply, v: Tensor, *, iterations: int, tolerance: float) -> Curvature:
    """The algebraically largest eigenvalue of each row's Hessian and its relative residual, from starts v [n, d].

    Power iteration finds the largest in magnitude; where that is negative, a second run on H - value * I, which has no
    negative eigenvalue left, finds the largest itself.
    """
    limits = {"iterations": iterations, "tolerance": tolerance}
    value, residual, vector = power_iteration(apply, v, v.new_zeros(len(v)), **limits)
    scale, shift = value.abs(), value.clamp_max(0)
    if bool((shift < 0).any()):
        start = torch.where((shift < 0)[:, None], v, vector)
        value, residual, _ = power_iteration(apply, start, shift, **limits)
        value = value + shift
    relative = residual / torch.maximum(scale, value.abs()).clamp_min(1e-30)
    return Curvature(values=as_array(value).astype(np.float64), residuals=as_array(relative).astype(np.float64))


def input_curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int = 100,
    tolerance: float = 1e-2,
    generator: Randomness = None,
    loss: Loss = losses.ce,
) -> Curvature:
    """Largest eigenvalue of d^2 loss / dx^2 of each image; a whole batch iterates at once, as images do not mix."""
    check_batch(x, y)
    start = streams(generator, len(x), x.device).normal(*x.shape[1:]).to(x)
    values, residuals = np.zeros(len(x)), np.zeros(len(x))
    with attack_mode(model):
        for first in range(0, len(x), BATCH_SIZE):
            rows = slice(first, first + BATCH_SIZE)

            def apply(v: Tensor, xs: Tensor = x[rows], ys: Tensor = y[rows]) -> Tensor:
                def summed_loss(points: Tensor) -> Tensor:
                    return loss(checked_logits(model, points, ys), ys).sum()

                return vhp(summed_loss, xs, v.view_as(xs))[1].flatten(1)  # type: ignore[union-attr]

            found = largest_eigenvalue(apply, start[rows].flatten(1), iterations=iterations, tolerance=tolerance)
            values[rows], residuals[rows] = found.values, found.residuals
    return Curvature(values=values, residuals=residuals)


def weight_curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int = 100,
    tolerance: float = 1e-2,
    generator: torch.Generator | None = None,
    loss: Loss = losses.ce,
) -> Curvature:
    """Largest eigenvalue of the Hessian of the mean loss over all parameters."""
    check_batch(x, y)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    points, sizes = tuple(weights.values()), [p.numel() for p in weights.values()]

    def batch_loss(xs: Tensor, ys: Tensor, *values: Tensor) -> Tensor:
        logits = losses.logits_in(torch.func.functional_call(model, dict(zip(weights, values, strict=True)), (xs,)))
        check_labels(logits, ys)
        return loss(logits, ys).sum() / len(x)

    def apply(v: Tensor) -> Tensor:
        parts = tuple(part.view_as(p) for part, p in zip(v[0].split(sizes), points, strict=True))
        total = torch.zeros_like(v)
        for batch in batches(x, y):
            total += torch.cat([h.flatten() for h in vhp(partial(batch_loss, *batch), points, parts)[1]])
        return total

    start = random_like(torch.cat([p.flatten() for p in points])[None], generator)
    with eval_mode(model):
        return largest_eigenvalue(apply, start, iterations=iterations, tolerance=tolerance)


def noise_rise(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    noise: Noise = PAPER_NOISE,
    draws: int = 20,
    generator: torch.Generator | None = None,
    loss: Loss = losses.ce,
) -> Array:
    """How much the mean loss rises from w to w + u, [draws], for draws of u from `noise`."""
    check_batch(x, y)
    rises = np.zeros(draws)
    with attack_mode(model):
        at_w = mean_loss(model, x, y, loss, BATCH_SIZE)
        for draw in range(draws):
            with perturbed(model, noise(model, generator=generator)):
                rises[draw] = mean_loss(model, x, y, loss, BATCH_SIZE) - at_w
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
) -> dict[str, Any]:
    """All four as plain numbers: means over images or draws, and how far the power iterations were from converged.

    `threat` is the ball of the Lipschitz constant, `draws` counts the samples of weight noise; the same seed gives
    every model compared the same random numbers.
    """

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    lipschitz = local_lipschitz(model, x, y, threat=threat, generator=generator())
    inputs = input_curvature(model, x, y, iterations=iterations, generator=generator())
    weights = weight_curvature(model, x, y, iterations=iterations, generator=generator())
    rises = noise_rise(model, x, y, draws=draws, generator=generator())
    return {
        "lipschitz": float(lipschitz.mean()),
        "lipschitz_norm": threat.norm,
        "lipschitz_epsilon": threat.epsilon,
        "input_eigenvalue": float(inputs.values.mean()),
        "input_residual": float(np.median(inputs.residuals)),
        "weight_eigenvalue": float(weights.values[0]),
        "weight_residual": float(weights.residuals[0]),
        "noise_rise": float(rises.mean()),
        "noise_rise_error": float(rises.std(ddof=1) / math.sqrt(draws)),
        "noise_sigma": PAPER_NOISE.sigma,
    }
