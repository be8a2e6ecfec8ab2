"""Objectives: one method a file; each returns named terms whose sum is the loss: what is logged is minimised."""

from typing import TYPE_CHECKING

from rattle.registry import lazy_names

if TYPE_CHECKING:
    from rattle.objectives.alp import ALP as ALP
    from rattle.objectives.at import AT as AT
    from rattle.objectives.base import Method as Method
    from rattle.objectives.base import Objective as Objective
    from rattle.objectives.label_smoothing import LabelSmoothing as LabelSmoothing
    from rattle.objectives.mart import Mart as Mart
    from rattle.objectives.registry import get_method as get_method
    from rattle.objectives.registry import register_method as register_method
    from rattle.objectives.s2o_at import S2OAT as S2OAT
    from rattle.objectives.s2o_trades import S2OTrades as S2OTrades
    from rattle.objectives.taylor_terms import Taylor as Taylor
    from rattle.objectives.trades import Trades as Trades

__getattr__ = lazy_names(
    __name__,
    {
        "alp": ["ALP"],
        "at": ["AT"],
        "base": ["Method", "Objective"],
        "label_smoothing": ["LabelSmoothing"],
        "mart": ["Mart"],
        "registry": ["get_method", "register_method"],
        "s2o_at": ["S2OAT"],
        "s2o_trades": ["S2OTrades"],
        "taylor_terms": ["Taylor"],
        "trades": ["Trades"],
    },
)
