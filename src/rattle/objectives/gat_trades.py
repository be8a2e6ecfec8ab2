"""TRADES with the attack of guided adversarial training (Sriramanan et al. 2020)."""

from dataclasses import dataclass

from rattle.objectives.base import Method
from rattle.objectives.gat import GAT
from rattle.objectives.trades import Trades
from rattle.settings import NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class GATTrades(Trades):
    """CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + Taylor terms, x' of one guided step."""

    title = "GAT-TRADES"
    unused = GAT.unused
    weight: NonNegative = 10.0  # l, weight of the guide in the attack
    weight_at = GAT.weight_at
    attack = GAT.attack


METHOD = Method(
    objective=GATTrades(),
)
