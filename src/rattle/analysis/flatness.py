"""How flat the loss is, in numbers: local Lipschitz constant, largest Hessian eigenvalues, rise under weight noise.

The paper argues by flatness (Section 3; Figs. 2 and 3); these numbers accompany the figures. All are computed in
evaluation mode, with BatchNorm's running statistics, and leave the model unchanged. Shared parameters are explained in
`rattle.analysis.landscape`; `generator` draws starting points, starting vectors or weight noise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle import losses
from rattle.analysis.landscape import (
    Loss,
    Progress,
    as_array,
    batches,
    check_inputs,
    input_gradient,
    mean_loss,
    no_progress,
)
from rattle.attacks.base import check_labels
from rattle.attacks.batchnorm import attack_mode
from rattle.errors import RattleError
from rattle.randomness import Randomness, streams
from rattle.runs.arrays import Array
from rattle.threat import Threat
from rattle.weights import Noise, eval_mode, perturbed

BATCH_SIZE = 256
STARTS, STEPS = 4, 5  # of the ascents behind the Lipschitz constant


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lipschitz:
    """A lower bound of the loss's Lipschitz constant on the ball around each image, in the threat's norm."""

    values: Array  # [n]
    norm: str
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curvature:
    """Largest Hessian eigenvalues: one per image in input space, one altogether in weight space."""

    values: Array  # [n] or [1]
    residuals: Array  # ||Hv - value v|| over the largest |eigenvalue|: how far from converged


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseRise:
    """How much the mean loss rises at w + u, u ~ N(0, sigma^2), draw by draw."""

    rises: Array  # [draws]
    sigma: float

    @property
    def mean(self) -> float:
        return float(self.rises.mean())

    @property
    def standard_error(self) -> float:
        return float(self.rises.std(ddof=1) / math.sqrt(len(self.rises)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flatness:
    """All flatness numbers of one model."""

    lipschitz: Lipschitz
    input: Curvature
    weight: Curvature
    noise: NoiseRise

    def summary(self) -> dict[str, Any]:
        """Plain numbers: means over images, and how far the power iterations were from converged."""
        return {
            "lipschitz": float(self.lipschitz.values.mean()),
            "lipschitz_norm": self.lipschitz.norm,
            "lipschitz_epsilon": self.lipschitz.epsilon,
            "input_eigenvalue": float(self.input.values.mean()),
            "input_residual": float(np.median(self.input.residuals)),
            "weight_eigenvalue": float(self.weight.values[0]),
            "weight_residual": float(self.weight.residuals[0]),
            "noise_rise": self.noise.mean,
            "noise_rise_error": self.noise.standard_error,
            "noise_sigma": self.noise.sigma,
        }


def local_lipschitz(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    generator: Randomness = None,
    loss: Loss = losses.ce,
    progress: Progress = no_progress,
) -> Lipschitz:
    """The largest dual norm of grad_x loss met on 4 ascents of 5 steps in the threat's ball, the first from x.

    Why the gradient and not |f(x) - f(x')| / ||x - x'||: on a convex ball the Lipschitz constant in a norm is the
    supremum of the gradient's dual norm (l_1 for l_inf, l_2 for l_2), while a quotient averages the gradient over a
    segment and can only be smaller. A maximum over points visited is a lower bound of that supremum.
    """
    check_inputs(x, y)
    draws = streams(generator, x)
    largest = x.new_zeros(len(x))
    with attack_mode(model):
        for start in range(STARTS):
            point = x if start == 0 else threat.random_start(x, draws)
            for step in range(STEPS + 1):
                gradient = torch.cat([input_gradient(model, *batch, loss) for batch in batches(point, y, BATCH_SIZE)])
                steepest = threat.ascend(torch.zeros_like(x), gradient, 1.0)  # of norm 1, so the product is dual
                largest = torch.maximum(largest, (gradient * steepest).flatten(1).sum(1))
                if step < STEPS:
                    point = threat.project(threat.ascend(point, gradient, 2 * threat.epsilon / STEPS), x)
            progress(start + 1, STARTS)
    return Lipschitz(values=as_array(largest).astype(np.float64), norm=threat.norm, epsilon=threat.epsilon)


Apply = Callable[[Tensor], Tensor]  # v [n, d] -> Hv [n, d], each row with its own Hessian


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
    if iterations < 1 or not tolerance > 0:
        raise RattleError(f"iterations must be >= 1 and tolerance > 0, got {iterations} and {tolerance}")
    limits = {"iterations": iterations, "tolerance": tolerance}
    value, residual, vector = power_iteration(apply, v, v.new_zeros(len(v)), **limits)
    scale, shift = value.abs(), value.clamp_max(0)
    if bool((shift < 0).any()):
        start = torch.where((shift < 0)[:, None], v, vector)
        value, residual, _ = power_iteration(apply, start, shift, **limits)
        value = value + shift
    relative = residual / torch.maximum(scale, value.abs()).clamp_min(1e-30)
    return Curvature(values=as_array(value).astype(np.float64), residuals=as_array(relative).astype(np.float64))


def hessian_product(gradients: list[Tensor], points: list[Tensor], v: list[Tensor], *, reuse: bool) -> list[Tensor]:
    """Hv by differentiating <gradient, v> (Pearlmutter 1994); zero where the loss is linear, ReLU kinks included.

    `reuse` keeps the graph of the gradients for another product.
    """
    product = torch.stack([(g * part).sum() for g, part in zip(gradients, v, strict=True)]).sum()
    if not product.requires_grad:
        return [torch.zeros_like(point) for point in points]
    return list(torch.autograd.grad(product, points, retain_graph=reuse, materialize_grads=True))


def input_curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int = 100,
    tolerance: float = 1e-2,
    batch_size: int = BATCH_SIZE,
    generator: Randomness = None,
    loss: Loss = losses.ce,
    progress: Progress = no_progress,
) -> Curvature:
    """Largest eigenvalue of d^2 loss / dx^2 of each image; a whole batch iterates at once, as images do not mix.

    Power iteration stops after `iterations` steps, or when every relative residual is at most `tolerance`.
    """
    check_inputs(x, y, batch_size)
    start = streams(generator, x).normal(*x.shape[1:]).to(x)
    values, residuals = np.zeros(len(x)), np.zeros(len(x))
    with attack_mode(model):
        for first in range(0, len(x), batch_size):
            rows = slice(first, first + batch_size)
            point = x[rows].detach().requires_grad_()
            gradient = input_gradient(model, point, y[rows], loss, create_graph=True)

            def apply(v: Tensor, point: Tensor = point, gradient: Tensor = gradient) -> Tensor:
                return hessian_product([gradient], [point], [v.view_as(point)], reuse=True)[0].flatten(1)

            found = largest_eigenvalue(apply, start[rows].flatten(1), iterations=iterations, tolerance=tolerance)
            values[rows], residuals[rows] = found.values, found.residuals
            progress(min(first + batch_size, len(x)), len(x))
    return Curvature(values=values, residuals=residuals)


def weight_curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int = 100,
    tolerance: float = 1e-2,
    batch_size: int = BATCH_SIZE,
    generator: torch.Generator | None = None,
    loss: Loss = losses.ce,
    progress: Progress = no_progress,
) -> Curvature:
    """Largest eigenvalue of the Hessian of the mean loss over all parameters, by power iteration.

    It stops after `iterations` steps, or when the relative residual is at most `tolerance`.
    """
    check_inputs(x, y, batch_size)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    if not weights:
        raise RattleError("the model has no parameters")
    applied = 0

    def apply(v: Tensor) -> Tensor:
        nonlocal applied
        total = torch.zeros_like(v)
        for xs, ys in batches(x, y, batch_size):
            total += weight_hessian_product(model, weights, xs, ys, v[0], lambda *pair: loss(*pair).sum() / len(x))
        applied += 1
        progress(min(applied, iterations), iterations)
        return total

    device, size = generator.device if generator is not None else "cpu", sum(p.numel() for p in weights.values())
    start = torch.randn(1, size, generator=generator, device=device).to(next(iter(weights.values())))
    with eval_mode(model), torch.enable_grad():
        found = largest_eigenvalue(apply, start, iterations=iterations, tolerance=tolerance)
    progress(iterations, iterations)  # also when it converged early
    return found


def weight_hessian_product(
    model: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, v: Tensor, loss: Loss
) -> Tensor:
    """Hv [d] of one batch's loss, a scalar, at the weights."""
    points = list(weights.values())
    logits = torch.func.functional_call(model, weights, (x,))
    check_labels(logits, y)
    gradients = torch.autograd.grad(loss(logits, y), points, create_graph=True, materialize_grads=True)
    parts = [part.view_as(p) for part, p in zip(v.split([p.numel() for p in points]), points, strict=True)]
    return torch.cat([h.flatten() for h in hessian_product(list(gradients), points, parts, reuse=False)])


def noise_rise(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    noise: Noise | None = None,
    draws: int = 20,
    generator: torch.Generator | None = None,
    loss: Loss = losses.ce,
    progress: Progress = no_progress,
) -> NoiseRise:
    """loss(w + u) - loss(w) for `draws` draws of u from `noise`, the paper's N(0, 0.01^2) by default (Section 4)."""
    check_inputs(x, y)
    if draws < 2:
        raise RattleError(f"draws must be >= 2, or there is no standard error, got {draws}")
    noise = noise or Noise()
    rises = np.zeros(draws)
    with attack_mode(model):
        at_w = mean_loss(model, x, y, batch_size=BATCH_SIZE, loss=loss)
        for draw in range(draws):
            with perturbed(model, noise(model, generator=generator)):
                rises[draw] = mean_loss(model, x, y, batch_size=BATCH_SIZE, loss=loss) - at_w
            progress(draw + 1, draws)
    return NoiseRise(rises=rises, sigma=noise.sigma)


def flatness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    iterations: int = 100,
    draws: int = 20,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Flatness:
    """All four numbers; the same seed gives every model compared the same random numbers.

    `threat` is the ball of the Lipschitz constant, `iterations` bounds the power iterations, `draws` counts the samples
    of weight noise.
    """

    def part(number: int) -> dict[str, Any]:
        """A fresh generator, and a quarter of the progress bar."""
        generator = torch.Generator().manual_seed(seed)
        return {"generator": generator, "progress": lambda d, n: progress(100 * number + 100 * d // n, 400)}

    return Flatness(
        lipschitz=local_lipschitz(model, x, y, threat=threat, **part(0)),
        input=input_curvature(model, x, y, iterations=iterations, **part(1)),
        weight=weight_curvature(model, x, y, iterations=iterations, **part(2)),
        noise=noise_rise(model, x, y, draws=draws, **part(3)),
    )
