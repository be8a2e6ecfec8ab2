"""The contract of an objective: what it asks to see, and named terms whose sum is the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from rattle.forward import ForwardSpec, Outputs

Reduce = Callable[[Tensor], Tensor]


def unreduced(values: Tensor) -> Tensor:
    """One process has nothing to average over."""
    return values


class Objective(Protocol):
    """(outputs, y, *, reduce) -> named terms whose sum is the loss; `reduce` averages head gradients over ranks."""

    @property
    def need(self) -> ForwardSpec: ...

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]: ...
