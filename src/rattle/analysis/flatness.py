"""How flat the loss is, in numbers: local Lipschitz constant, largest Hessian eigenvalues, rise under weight noise.

The paper argues by flatness (Section 3; Figs. 2 and 3); these are the figures to set beside the pictures. All are
taken in evaluation mode, with BatchNorm's running statistics, and leave the model as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rattle import losses
from rattle.analysis.landscape import Loss, Progress, as_array, check_batch_size, input_gradient, mean_loss
from rattle.attacks.base import check_batch, check_labels, logits_of
from rattle.attacks.batchnorm import attack_mode
from rattle.errors import RattleError
from rattle.randomness import Randomness, streams
from rattle.runs.arrays import Array
from rattle.threat import Threat
from rattle.weights import Noise, eval_mode, perturbed


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


def local_lipschitz(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    starts: int = 4,
    steps: int = 5,
    batch_size: int = 512,
    generator: Randomness = None,
    loss: Loss = losses.ce,
    progress: Progress | None = None,
) -> Lipschitz:
    """The largest dual norm of grad_x loss met on `starts` climbs of `steps` steps in the ball, the first from x.

    Why the gradient and not |f(x) - f(x')| / ||x - x'||: on a convex ball the Lipschitz constant in a norm is the
    supremum of the gradient's dual norm (l_1 for l_inf, l_2 for l_2), while a quotient averages the gradient over a
    segment and can only be smaller. A maximum over points visited is a lower bound of that supremum.
    """
    check_batch(x, y)
    check_batch_size(batch_size)
    if starts < 1 or steps < 0:
        raise RattleError(f"starts must be >= 1 and steps >= 0, got {starts} and {steps}")
    draws = streams(generator, x)
    step_size = 2 * threat.epsilon / max(steps, 1)
    largest = x.new_zeros(len(x))
    with attack_mode(model):
        for start in range(starts):
            point = x if start == 0 else threat.random_start(x, draws)
            for step in range(steps + 1):
                batches = zip(point.split(batch_size), y.split(batch_size), strict=True)
                gradient = torch.cat([input_gradient(model, xs, ys, loss) for xs, ys in batches])
                steepest = threat.ascend(torch.zeros_like(x), gradient, 1.0)  # of norm 1, so the product is dual
                largest = torch.maximum(largest, (gradient * steepest).flatten(1).sum(1))
                if step < steps:
                    point = threat.project(threat.ascend(point, gradient, step_size), x)
            if progress:
                progress(start + 1, starts)
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


def largest_eigenvalue(apply: Apply, v: Tensor, *, iterations: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """The algebraically largest eigenvalue of each row's Hessian and its relative residual.

    Power iteration finds the largest in magnitude; where that is negative, a second run on H - value * I, which has no
    negative eigenvalue left, finds the largest itself.
    """
    dominant, residual, vector = power_iteration(
        apply, v, v.new_zeros(len(v)), iterations=iterations, tolerance=tolerance
    )
    shift = dominant.clamp_max(0)
    value = dominant
    if bool((shift < 0).any()):
        start = torch.where((shift < 0)[:, None], v, vector)
        value, residual, _ = power_iteration(apply, start, shift, iterations=iterations, tolerance=tolerance)
        value = value + shift
    scale = torch.maximum(dominant.abs(), value.abs()).clamp_min(1e-30)
    return value, residual / scale


def hessian_product(gradients: list[Tensor], points: list[Tensor], v: list[Tensor], *, keep: bool) -> list[Tensor]:
    """Hv by differentiating <gradient, v> (Pearlmutter 1994); zero where the loss is linear, ReLU kinks included."""
    product = torch.stack([(g * part).sum() for g, part in zip(gradients, v, strict=True)]).sum()
    if not product.requires_grad:
        return [torch.zeros_like(point) for point in points]
    return list(torch.autograd.grad(product, points, retain_graph=keep, materialize_grads=True))


def check_iterations(iterations: int, tolerance: float) -> None:
    if iterations < 1 or not tolerance > 0:
        raise RattleError(f"iterations must be >= 1 and tolerance > 0, got {iterations} and {tolerance}")


def input_curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int = 100,
    tolerance: float = 1e-2,
    batch_size: int = 256,
    generator: Randomness = None,
    loss: Loss = losses.ce,
    progress: Progress | None = None,
) -> Curvature:
    """Largest eigenvalue of d^2 loss / dx^2 of each image; a whole batch iterates at once, as images do not mix."""
    check_batch(x, y)
    check_batch_size(batch_size)
    check_iterations(iterations, tolerance)
    start = streams(generator, x).normal(*x.shape[1:]).to(x)
    found: list[tuple[Tensor, Tensor]] = []
    with attack_mode(model):
        for xs, ys, vs in zip(x.split(batch_size), y.split(batch_size), start.split(batch_size), strict=True):
            point = xs.detach().requires_grad_()
            logits = logits_of(model, point)
            check_labels(logits, ys)
            gradient = torch.autograd.grad(loss(logits, ys).sum(), point, create_graph=True)[0]

            def apply(v: Tensor, point: Tensor = point, gradient: Tensor = gradient) -> Tensor:
                return hessian_product([gradient], [point], [v.view_as(point)], keep=True)[0].flatten(1)

            found.append(largest_eigenvalue(apply, vs.flatten(1), iterations=iterations, tolerance=tolerance))
            if progress:
                progress(sum(len(value) for value, _ in found), len(x))
    values, residuals = (as_array(torch.cat(part)).astype(np.float64) for part in zip(*found, strict=True))
    return Curvature(values=values, residuals=residuals)


def weight_curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int = 100,
    tolerance: float = 1e-2,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
    loss: Loss = losses.ce,
    progress: Progress | None = None,
) -> Curvature:
    """Largest eigenvalue of the Hessian of the mean loss over all parameters, by power iteration."""
    check_batch(x, y)
    check_batch_size(batch_size)
    check_iterations(iterations, tolerance)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    points, sizes = list(weights.values()), [p.numel() for p in weights.values()]
    if not points:
        raise RattleError("the model has no parameters")
    applied = 0

    def apply(v: Tensor) -> Tensor:
        nonlocal applied
        parts = [part.view_as(p) for part, p in zip(v[0].split(sizes), points, strict=True)]
        total = torch.zeros_like(v)
        for xs, ys in zip(x.split(batch_size), y.split(batch_size), strict=True):
            logits = torch.func.functional_call(model, weights, (xs,))
            check_labels(logits, ys)
            gradients = torch.autograd.grad(
                loss(logits, ys).sum() / len(x), points, create_graph=True, materialize_grads=True
            )
            hv = hessian_product(list(gradients), points, parts, keep=False)
            total += torch.cat([h.flatten() for h in hv])
        applied += 1
        if progress:
            progress(min(applied, iterations), iterations)
        return total

    device = generator.device if generator is not None else "cpu"
    start = torch.randn(1, sum(sizes), generator=generator, device=device).to(points[0])
    with eval_mode(model), torch.enable_grad():
        value, residual = largest_eigenvalue(apply, start, iterations=iterations, tolerance=tolerance)
    if progress:
        progress(iterations, iterations)
    return Curvature(values=as_array(value).astype(np.float64), residuals=as_array(residual).astype(np.float64))


def noise_rise(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    noise: Noise | None = None,
    draws: int = 20,
    batch_size: int = 512,
    generator: torch.Generator | None = None,
    loss: Loss = losses.ce,
    progress: Progress | None = None,
) -> NoiseRise:
    """loss(w + u) - loss(w) for `draws` draws of the paper's u ~ N(0, sigma^2) (Section 4)."""
    check_batch(x, y)
    check_batch_size(batch_size)
    if draws < 2:
        raise RattleError(f"draws must be >= 2, or there is no standard error, got {draws}")
    noise = noise or Noise()
    rises = np.zeros(draws)
    with attack_mode(model):
        at_w = mean_loss(model, x, y, batch_size=batch_size, loss=loss)
        for draw in range(draws):
            with perturbed(model, noise(model, generator=generator)):
                rises[draw] = mean_loss(model, x, y, batch_size=batch_size, loss=loss) - at_w
            if progress:
                progress(draw + 1, draws)
    return NoiseRise(rises=rises, sigma=noise.sigma)


def flatness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    noise: Noise | None = None,
    iterations: int = 100,
    draws: int = 20,
    seed: int = 0,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Flatness:
    """All four numbers; the same seed gives every model compared the same draws."""

    def part(number: int) -> Progress:
        def tell(done: int, total: int) -> None:
            if progress:
                progress(100 * number + 100 * done // total, 400)

        return tell

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    return Flatness(
        lipschitz=local_lipschitz(
            model, x, y, threat=threat, batch_size=batch_size, generator=generator(), progress=part(0)
        ),
        input=input_curvature(
            model, x, y, iterations=iterations, batch_size=batch_size, generator=generator(), progress=part(1)
        ),
        weight=weight_curvature(
            model, x, y, iterations=iterations, batch_size=batch_size, generator=generator(), progress=part(2)
        ),
        noise=noise_rise(
            model, x, y, noise=noise, draws=draws, batch_size=batch_size, generator=generator(), progress=part(3)
        ),
    )
