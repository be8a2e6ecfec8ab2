"""The threat model: which perturbations count. The only place that knows a norm."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rattle.errors import RattleError
from rattle.randomness import ImageStreams
from rattle.settings import NonNegative, check_settings

Norm = Literal["linf", "l2", "l1"]
POWER: dict[Norm, float] = {"linf": 0, "l2": 1 / 2, "l1": 1}  # 1/p of l_p
LARGEST: dict[Norm, float] = {"linf": 1, "l2": 1e4, "l1": 1e8}  # no image in [0, 1] is farther away
L1_SHARE = 0.01  # the share of coordinates that one l_1 step moves (Tramer and Boneh 2019)


def per_image(values: Tensor, x: Tensor) -> Tensor:
    """A value of each image, [n] or [n, 1], shaped to broadcast over the images x."""
    return values.view(-1, *[1] * (x.ndim - 1))


def length(delta: Tensor) -> Tensor:
    """l_2 length of each image's perturbation, shaped to broadcast over it."""
    return per_image(delta.flatten(1).norm(dim=1), delta)


def shrink_l1(delta: Tensor, room: Tensor, epsilon: float | Tensor) -> Tensor:
    """Nearest point to `delta` with l_1 length <= epsilon and |.| <= room, [n, d] (Croce and Hein 2021, Prop. 2.2).

    It is sign(delta) clip(|delta| - t, 0, room), with the smallest threshold t >= 0 that is enough, by bisection.
    """
    size = delta.abs()
    low = size.new_zeros(len(size), 1)
    high = torch.where(torch.minimum(size, room).sum(1, keepdim=True) > epsilon, size.amax(1, keepdim=True), low)
    for _ in range(40):
        middle = (low + high) / 2
        over = torch.minimum((size - middle).clamp_min(0), room).sum(1, keepdim=True) > epsilon
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    kept = torch.minimum((size - high).clamp_min(0), room)
    kept *= (epsilon / kept.sum(1, keepdim=True).clamp_min(1e-12)).clamp_max(1)  # what rounding left outside
    return kept * delta.sign()


@dataclass(frozen=True, slots=True, kw_only=True)
class Threat:
    """All x' in [0, 1] with ||x' - x|| <= epsilon.

    >>> threat = Threat(norm="l2", epsilon=0.5)
    >>> x = torch.full((1, 1, 2, 2), 0.5)
    >>> round(float(threat.distance(threat.project(x + 1, x), x)), 6)
    0.5
    """

    norm: Norm = "linf"  # l_p of the paper's ||s' - s||_p
    epsilon: NonNegative = 8 / 255  # radius of the ball, images being in [0, 1]

    def __post_init__(self) -> None:
        check_settings(self, "threat")
        if self.epsilon >= LARGEST[self.norm]:
            raise RattleError(
                f"threat.epsilon {self.epsilon:g} is no {self.norm} radius for images in [0, 1]: it must be below "
                f"{LARGEST[self.norm]:g}; 8 of 255 levels are 8/255"
            )

    def project(self, x_adv: Tensor, x: Tensor, radius: float | Tensor | None = None) -> Tensor:
        """The nearest point of the ball around x, then of [0, 1] (Algorithm 1); for l_1 of both at once.
        radius: replaces epsilon, and may be one for each image, [n, 1, 1, 1]."""
        radius = self.epsilon if radius is None else radius
        if self.norm == "linf":
            return torch.clamp(x_adv, x - radius, x + radius).clamp_(0, 1)
        delta = x_adv - x
        if self.norm == "l1":
            room = torch.where(delta > 0, 1 - x, x).flatten(1)
            flat = radius.flatten(1) if isinstance(radius, Tensor) else radius
            return (x + shrink_l1(delta.flatten(1), room, flat).view_as(x)).clamp_(0, 1)
        shrink = (radius / length(delta).clamp_min(1e-12)).clamp_max(1)
        return (x + delta * shrink).clamp_(0, 1)

    def shorten(self, delta: Tensor) -> Tensor:
        """The nearest perturbation in the ball, without regard to [0, 1]."""
        if self.norm == "linf":
            return delta.clamp(-self.epsilon, self.epsilon)
        if self.norm == "l1":
            flat = delta.flatten(1)
            return shrink_l1(flat, torch.full_like(flat, torch.inf), self.epsilon).view_as(delta)
        return delta * (self.epsilon / length(delta).clamp_min(1e-12)).clamp_max(1)

    def ascend(self, x_adv: Tensor, gradient: Tensor, step_size: float | Tensor) -> Tensor:
        """One steepest step up: the sign, the normalised gradient, or the sign on the largest few coordinates."""
        if self.norm == "linf":
            return x_adv + step_size * gradient.sign()
        if self.norm == "l1":
            size = gradient.abs().flatten(1)
            k = max(1, round(L1_SHARE * size.shape[1]))
            step = (size >= size.topk(k, dim=1).values[:, -1:]).view_as(x_adv) * gradient.sign()
            return x_adv + step_size * step / per_image(step.abs().flatten(1).sum(1).clamp_min(1), step)
        return x_adv + step_size * gradient / length(gradient).clamp_min(1e-12)

    def random_start(self, x: Tensor, draws: ImageStreams, radius: float | Tensor | None = None) -> Tensor:
        """A point drawn uniformly from the ball around x (radius: see `project`), clipped; l_1: projected Gaussian."""
        shape, size = x.shape[1:], self.epsilon if radius is None else radius
        if self.norm == "linf":
            return (x + size * (2 * draws.uniform(*shape).to(x.dtype) - 1)).clamp_(0, 1)
        direction = draws.normal(*shape).to(x.dtype)
        if self.norm == "l1":
            return self.project(x + direction, x, size)
        share = draws.uniform(*[1] * len(shape)).to(x.dtype) ** (1 / x[0].numel())
        return (x + size * share * direction / length(direction).clamp_min(1e-12)).clamp_(0, 1)

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """||x' - x|| of each image, [n]."""
        delta = (x_adv - x).flatten(1)
        if self.norm == "linf":
            return delta.abs().amax(1)
        return delta.norm(dim=1, p=1 if self.norm == "l1" else 2)

    def lies_within(self, other: "Threat", size: int) -> bool:
        """Whether this ball, of perturbations of `size` numbers, lies inside another around the same image.

        The longest perturbation by another norm: ||d||_q <= size^max(0, 1/q - 1/p) ||d||_p.

        >>> Threat(norm="l2", epsilon=0.5).lies_within(Threat(norm="linf", epsilon=0.5), 64)
        True
        """
        return self.epsilon * size ** max(0.0, POWER[other.norm] - POWER[self.norm]) <= other.epsilon

    def contains(self, x_adv: Tensor, x: Tensor, *, slack: float = 1e-5) -> Tensor:
        """Which images lie inside the ball and [0, 1], up to float rounding, [n]."""
        inside = (x_adv.flatten(1).amin(1) >= -slack) & (x_adv.flatten(1).amax(1) <= 1 + slack)
        return inside & (self.distance(x_adv, x) <= self.epsilon * (1 + slack) + slack)
