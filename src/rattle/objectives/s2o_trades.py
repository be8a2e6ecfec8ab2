"""TRADES with second-order statistics of weights (S2O, Jin et al. 2022)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rattle.attacks import PGD
from rattle.losses import ce, kl
from rattle.objectives.base import Method, Reduce, check_fractions, check_weights
from rattle.objectives.s2o_at import second_order
from rattle.objectives.taylor_terms import PairObjective
from rattle.weights import AWP


@dataclass(frozen=True, slots=True, kw_only=True)
class S2OTrades(PairObjective):
    """(1 - share) CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + share second_order(z, z', y) + Taylor terms."""

    title: ClassVar[str] = "TRADES-S2O"
    inv_lambda: float = 6.0  # 1/lambda, weight of the zeroth term (TRADES' beta)
    share: float = 0.3  # weight of the soft labels; the labels have the rest

    def __post_init__(self) -> None:
        check_weights(self, "inv_lambda")
        check_fractions(self, "share")

    def terms_at(self, z: Tensor, z_adv: Tensor, y: Tensor, reduce: Reduce) -> dict[str, Tensor]:
        return {
            "clean": (1 - self.share) * ce(z, y).mean(),
            "zeroth": self.inv_lambda * kl(z, z_adv).mean(),
            "statistics": self.share * second_order(z, z_adv, y, reduce),
        }


METHOD = Method(
    objective=S2OTrades(),
    attack=PGD(loss="kl", start="gaussian"),
    awp=AWP(gamma=0.005, warmup=10),
)
