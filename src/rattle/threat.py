"""The threat model: which perturbations count. The only place that knows a norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rattle.errors import RattleError
from rattle.randomness import Streams

Norm = Literal["linf", "l2"]


def length(delta: Tensor) -> Tensor:
    """l_2 length of each image's perturbation, shaped to broadcast over it."""
    return delta.flatten(1).norm(dim=1).view(-1, *[1] * (delta.ndim - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Threat:
    """All x' in [0, 1] with ||x' - x|| <= epsilon.

    >>> threat = Threat(norm="l2", epsilon=0.5)
    >>> x = torch.full((1, 1, 2, 2), 0.5)
    >>> round(float(threat.distance(threat.project(x + 1, x), x)), 6)
    0.5
    """

    norm: Norm = "linf"  # l_p of the paper's ||s' - s||_p
    epsilon: float = 8 / 255  # radius of the ball, images being in [0, 1]

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2"):
            raise RattleError(f"threat.norm must be linf or l2, got {self.norm!r}")
        if not self.epsilon >= 0:
            raise RattleError(f"threat.epsilon must be >= 0, got {self.epsilon}")

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The nearest point of the ball around x, then of [0, 1] (Algorithm 1's projection)."""
        if self.norm == "linf":
            return torch.clamp(x_adv, x - self.epsilon, x + self.epsilon).clamp_(0, 1)
        delta = x_adv - x
        shrink = (self.epsilon / length(delta).clamp_min(1e-12)).clamp_max(1)
        return (x + delta * shrink).clamp_(0, 1)

    def ascend(self, x_adv: Tensor, gradient: Tensor, step_size: float) -> Tensor:
        """One steepest step up: the sign for l_inf, the normalised gradient for l_2."""
        if self.norm == "linf":
            return x_adv + step_size * gradient.sign()
        return x_adv + step_size * gradient / length(gradient).clamp_min(1e-12)

    def random_start(self, x: Tensor, draws: Streams) -> Tensor:
        """A point drawn uniformly from the ball around x, clipped to [0, 1]."""
        shape = x.shape[1:]
        if self.norm == "linf":
            return (x + self.epsilon * (2 * draws.uniform(*shape).to(x.dtype) - 1)).clamp_(0, 1)
        direction = draws.normal(*shape).to(x.dtype)
        radius = draws.uniform(*[1] * len(shape)).to(x.dtype) ** (1 / x[0].numel())
        return (x + self.epsilon * radius * direction / length(direction).clamp_min(1e-12)).clamp_(0, 1)

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """||x' - x|| of each image, [n]."""
        delta = (x_adv - x).flatten(1)
        return delta.abs().amax(1) if self.norm == "linf" else delta.norm(dim=1)

    def contains(self, x_adv: Tensor, x: Tensor, *, slack: float = 1e-5) -> Tensor:
        """Which images lie inside the ball and [0, 1], up to float rounding, [n]."""
        inside = (x_adv.flatten(1).amin(1) >= -slack) & (x_adv.flatten(1).amax(1) <= 1 + slack)
        return inside & (self.distance(x_adv, x) <= self.epsilon * (1 + slack) + slack)
