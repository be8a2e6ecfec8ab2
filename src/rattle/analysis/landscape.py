"""Loss landscapes as arrays: over a plane in input space, and along random directions in weight space.

Input space follows Figs. 2 and 3 of the paper: the plane of sign(grad_x loss) and a Rademacher(0.5) direction. Weight
space follows Li et al. (2018), filter normalisation; the adversarial loss is attacked afresh at every point, as Wu et
al. (2020) do. Models are borrowed: mode, weights, gradients and statistics come back as they were.
Pictures of the arrays are drawn by `rattle.analysis.plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rattle import losses
from rattle.attacks.base import Attack, check_batch, check_labels, logits_of
from rattle.attacks.batchnorm import attack_mode
from rattle.errors import RattleError
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.runs.arrays import Array, InputPlane, InputSurface, WeightSurface
from rattle.weights import Delta, perturbed

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits [n, C], y [n]) -> [n]
Progress = Callable[[int, int], None]  # (done, total)


def as_array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()


def axis(radius: float, points: int) -> Array:
    """Evenly spaced from -radius to radius; an odd number of points, so that the middle one is exactly 0."""
    if points < 3 or points % 2 == 0:
        raise RattleError(f"landscape points must be odd and >= 3, so that 0 is one of them, got {points}")
    if not (radius > 0 and np.isfinite(radius)):
        raise RattleError(f"landscape radius must be > 0, got {radius}")
    half = points // 2
    return np.arange(-half, half + 1) * (radius / half)


def check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise RattleError(f"batch_size must be >= 1, got {batch_size}")


def input_gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """grad_x of each image's loss; to be called inside `attacked`."""
    x = x.detach().requires_grad_()
    logits = logits_of(model, x)
    check_labels(logits, y)
    return torch.autograd.grad(loss(logits, y).sum(), x)[0]


def input_plane(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    radius: float = 16 / 255,
    points: int = 25,
    generator: Randomness = None,
    loss: Loss = losses.ce,
    progress: Progress | None = None,
) -> InputPlane:
    """The plane of Figs. 2 and 3 for each image, its gradient direction taken from the given (reference) model."""
    check_batch(x, y)
    steps = axis(radius, points)
    rademacher = streams(generator, x).signs(*x.shape[1:])
    with attack_mode(model):
        gradient = input_gradient(model, x, y, loss).sign()
    if progress:
        progress(1, 1)
    return InputPlane(a=steps, b=steps.copy(), gradient=as_array(gradient), rademacher=as_array(rademacher))


def input_surface(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    plane: InputPlane,
    *,
    batch_size: int = 2048,
    loss: Loss = losses.ce,
    progress: Progress | None = None,
) -> InputSurface:
    """The loss at x + a * gradient + b * rademacher for every grid point (Figs. 2, 3); points may leave [0, 1]."""
    check_batch(x, y)
    check_batch_size(batch_size)
    if plane.gradient.shape != tuple(x.shape):
        raise RattleError(f"the plane is for images {list(plane.gradient.shape)}, got {list(x.shape)}")
    a, b, gradient, rademacher = (
        torch.as_tensor(v).to(x) for v in (plane.a, plane.b, plane.gradient, plane.rademacher)
    )
    grid, total = (len(x), len(a), len(b)), len(x) * len(a) * len(b)
    heights, right = [], []
    scalar = [-1] + [1] * (x.ndim - 1)
    with attack_mode(model), torch.no_grad():
        for first in range(0, total, batch_size):
            point = torch.arange(first, min(first + batch_size, total), device=x.device)
            image, step_a, step_b = torch.unravel_index(point, grid)
            moved = x[image] + a[step_a].view(scalar) * gradient[image] + b[step_b].view(scalar) * rademacher[image]
            logits = logits_of(model, moved)
            check_labels(logits, y)
            heights.append(loss(logits, y[image]))
            right.append(logits.argmax(1) == y[image])
            if progress:
                progress(int(point[-1]) + 1, total)
    return InputSurface(
        a=plane.a,
        b=plane.b,
        loss=as_array(torch.cat(heights).view(grid)).astype(np.float64),
        correct=as_array(torch.cat(right).view(grid)),
        x=as_array(x),
        y=as_array(y),
    )


def filter_normalised(model: nn.Module, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """A random direction whose every filter is as long as the model's own (Li et al. 2018, Section 4).

    A filter is a slice along the first axis of a weight with two or more; biases and normalisation layers get none.
    """
    device = generator.device if generator is not None else "cpu"
    direction = {}
    for name, p in model.named_parameters():
        if p.ndim > 1:
            d = torch.randn(p.shape, generator=generator, device=device).to(p)
            ones = [-1] + [1] * (p.ndim - 1)
            ratio = p.detach().flatten(1).norm(dim=1) / d.flatten(1).norm(dim=1).clamp_min(1e-12)
            direction[name] = d * ratio.view(ones)
    if not direction:
        raise RattleError("the model has no weight matrix to walk along")
    return direction


def mean_loss(model: nn.Module, x: Tensor, y: Tensor, *, batch_size: int, loss: Loss) -> float:
    """Mean loss over the images; to be called inside `attacked`."""
    total = 0.0
    with torch.no_grad():
        for xs, ys in zip(x.split(batch_size), y.split(batch_size), strict=True):
            logits = logits_of(model, xs)
            check_labels(logits, ys)
            total += float(loss(logits, ys).double().sum())
    return total / len(x)


def adversarial_loss(
    model: nn.Module, x: Tensor, y: Tensor, attack: Attack, *, seed: int, batch_size: int, loss: Loss
) -> float:
    """Mean loss on examples made at the present weights; image i always draws the same numbers."""
    index = torch.arange(len(x), device=x.device)
    x_adv = torch.cat(
        [
            attack(model, xs, ys, generator=ImageStreams(seed, i))
            for xs, ys, i in zip(x.split(batch_size), y.split(batch_size), index.split(batch_size), strict=True)
        ]
    )
    return mean_loss(model, x_adv, y, batch_size=batch_size, loss=loss)


def weight_surface(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    directions: Sequence[Delta],
    radius: float = 1.0,
    points: int = 25,
    attack: Attack | None = None,
    seed: int = 0,
    batch_size: int = 512,
    loss: Loss = losses.ce,
    progress: Progress | None = None,
) -> WeightSurface:
    """Mean clean and adversarial loss along one direction or over the plane of two (Li et al. 2018, eqs. 1 and 2).

    `directions` are usually one or two draws of `filter_normalised`; BatchNorm keeps its running statistics.
    """
    check_batch(x, y)
    check_batch_size(batch_size)
    if len(directions) not in (1, 2):
        raise RattleError(f"a weight landscape has one or two directions, got {len(directions)}")
    a = axis(radius, points)
    b = a.copy() if len(directions) == 2 else np.zeros(1)
    clean, adversarial = np.full((len(a), len(b)), np.nan), np.full((len(a), len(b)), np.nan)
    with attack_mode(model):
        for done, (i, j) in enumerate(np.ndindex(clean.shape), start=1):
            with perturbed(model, combined(directions, (float(a[i]), float(b[j])))):
                clean[i, j] = mean_loss(model, x, y, batch_size=batch_size, loss=loss)
                if attack is not None:
                    adversarial[i, j] = adversarial_loss(
                        model, x, y, attack, seed=seed, batch_size=batch_size, loss=loss
                    )
            if progress:
                progress(done, clean.size)
    return WeightSurface(a=a, b=b, clean=clean, adversarial=adversarial)


def combined(directions: Sequence[Delta], steps: Sequence[float]) -> dict[str, Tensor]:
    """The sum of step * direction."""
    delta: dict[str, Tensor] = {}
    for direction, step in zip(directions, steps, strict=False):  # one direction takes the first step alone
        for name, d in direction.items():
            delta[name] = delta[name] + step * d if name in delta else step * d
    return delta
