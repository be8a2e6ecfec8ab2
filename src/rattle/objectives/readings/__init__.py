"""Readings of the Taylor terms: how they are computed, one file each, by the name that `objective.taylor.mode` gives.

One line here adds one; `register_reading` does it at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from rattle.forward import ForwardSpec, Outputs
from rattle.registry import Entry, Registry

if TYPE_CHECKING:
    from rattle.objectives.base import StepContext, Terms
    from rattle.objectives.taylor_terms import Taylor


class Reading:
    """A way to compute the first- and second-order terms. `terms` is all that has to be written."""

    orders: ClassVar[tuple[int, ...]] = (1, 2)  # that it can have
    smooths: ClassVar[bool] = False  # its terms are soft labels
    weighted: ClassVar[bool] = True  # it has terms of its own, which eta weighs

    def needs(self, taylor: Taylor) -> ForwardSpec:
        """What the forward passes have to provide; by default the logits at x and x'."""
        return ForwardSpec()

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        """`first` and `second`, as far as `taylor.order` asks for them, before they are weighted."""
        raise NotImplementedError


READINGS: Registry[Reading] = Registry(
    "objective.taylor.mode",
    {
        "head": Entry(".head:HEAD", "soft labels from the head's gradients (paper)"),
        "smoothing": Entry(".smoothing:SMOOTHING", "the same with constant soft labels"),
        "exact": Entry(".exact:EXACT", "derivatives of the logits along u"),
        "sampled": Entry(".sampled:SAMPLED", "the method's own loss at w + u"),
    },
    package="rattle.objectives.readings",
)


def register_reading(name: str, reading: Reading) -> None:
    """Let recipes name a reading of your own as `objective.taylor.mode`."""
    READINGS.add(name, reading)
