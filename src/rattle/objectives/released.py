"""The objective of the authors' release, which training/released.py trains; a recipe ends in `-released`."""

from dataclasses import dataclass
from typing import ClassVar

from rattle.errors import RattleError
from rattle.objectives.taylor_terms import Taylor
from rattle.objectives.trades import Trades


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Trades):
    """TRADES + 1st + 2nd, whose terms only training/released.py computes."""

    needs_run: ClassVar[bool] = True
    taylor: Taylor = Taylor(order=2)

    def __post_init__(self) -> None:
        Trades.__post_init__(self)
        if self.taylor.order != 2 or self.taylor.mode != "head":
            raise RattleError("objective.kind Released has objective.taylor.order 2 and mode head, as the release does")
