"""Objectives: one method a file; each returns named terms whose sum is the loss: what is logged is minimised."""

from rattle.objectives.at import AT
from rattle.objectives.base import Method, Objective
from rattle.objectives.registry import get_method, register_method
from rattle.objectives.taylor_terms import Taylor
from rattle.objectives.trades import Trades

__all__ = ["AT", "Method", "Objective", "Taylor", "Trades", "get_method", "register_method"]
