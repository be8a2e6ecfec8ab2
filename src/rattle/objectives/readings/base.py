"""What a reading of the Taylor terms is: the forward passes it needs, and the terms it makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from rattle.forward import ForwardSpec, Outputs

if TYPE_CHECKING:
    from rattle.objectives.base import StepContext
    from rattle.objectives.taylor_terms import Taylor


class Reading:
    """A way to compute the first- and second-order terms. `terms` is all that has to be written."""

    orders: ClassVar[tuple[int, ...]] = (1, 2)  # that it can have
    antithetic: ClassVar[bool] = False  # every u may come with -u
    weighted: ClassVar[bool] = True  # it has terms of its own, which eta weighs

    def needs(self, taylor: Taylor) -> ForwardSpec:
        """What the forward passes have to provide; by default the logits at x and x'."""
        return ForwardSpec()

    def terms(self, taylor: Taylor, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        """`first` and `second`, as far as `taylor.order` asks for them, before they are weighted."""
        raise NotImplementedError
