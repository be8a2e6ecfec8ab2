"""TRADES with second-order statistics of weights (S2O, Jin et al. 2022)."""

from dataclasses import dataclass

from torch import Tensor

from rattle.forward import Outputs
from rattle.losses import ce, kl
from rattle.objectives.base import Method, StepContext, Terms
from rattle.objectives.s2o_at import second_order
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.objectives.trades import KL_ATTACK
from rattle.settings import Between, NonNegative
from rattle.weights import AWP


@dataclass(frozen=True, slots=True, kw_only=True)
class S2OTrades(TaylorObjective):
    """(1 - share) CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + share second_order(z, z', y) + Taylor terms."""

    title = "TRADES-S2O"
    smooths = True
    trade_off = "objective.inv_lambda"
    inv_lambda: NonNegative = 6.0  # 1/lambda, weight of the zeroth term (TRADES' beta)
    share: Between = 0.3  # weight of the soft labels; the labels have the rest

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return {
            "clean": outputs.mean(lambda z, z_adv: (1 - self.share) * ce(z, y).mean()),
            "zeroth": outputs.mean(lambda z, z_adv: self.inv_lambda * kl(z, z_adv).mean()),
            "statistics": self.share * second_order(outputs, y, context),
        }


METHOD = Method(
    objective=S2OTrades(),
    attack=KL_ATTACK,
    awp=AWP(),
)
