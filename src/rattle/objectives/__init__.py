"""Objectives: one a file; each returns named terms whose sum is the loss, so what is logged is what is minimised."""

from rattle.objectives.at import AT
from rattle.objectives.base import Objective
from rattle.objectives.trades import Trades

__all__ = ["AT", "Objective", "Trades"]
