"""Objectives: one method a file; each returns named terms whose sum is the loss: what is logged is minimised."""

from rattle.objectives.alp import ALP
from rattle.objectives.at import AT
from rattle.objectives.base import Method, Objective
from rattle.objectives.label_smoothing import LabelSmoothing
from rattle.objectives.mart import Mart
from rattle.objectives.registry import get_method, register_method
from rattle.objectives.s2o_at import S2OAT
from rattle.objectives.s2o_trades import S2OTrades
from rattle.objectives.taylor_terms import Taylor
from rattle.objectives.trades import Trades

__all__ = [
    "ALP",
    "AT",
    "S2OAT",
    "LabelSmoothing",
    "Mart",
    "Method",
    "Objective",
    "S2OTrades",
    "Taylor",
    "Trades",
    "get_method",
    "register_method",
]
