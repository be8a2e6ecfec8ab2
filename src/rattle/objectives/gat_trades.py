"""TRADES with the attack of guided adversarial training (Sriramanan et al. 2020)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from rattle.attacks import PGD, Attack
from rattle.forward import ForwardSpec, Outputs
from rattle.objectives.base import ONE_STEP, Method, Moment, Reduce, StepContext, unreduced
from rattle.objectives.gat import Guide
from rattle.objectives.taylor_terms import Taylor
from rattle.objectives.trades import Trades


@dataclass(frozen=True, slots=True, kw_only=True)
class GATTrades:
    """CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + Taylor terms, x' of one guided step."""

    title: ClassVar[str] = "GAT-TRADES"
    soft_labels: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ONE_STEP
    taylor: Taylor = Taylor()  # the paper's first- and second-order terms
    inv_lambda: float = 6.0  # 1/lambda, weight of the KL term (TRADES' beta)
    guide: Guide = Guide()  # the attack

    def __post_init__(self) -> None:
        self.trades()  # checks inv_lambda

    def trades(self) -> Trades:
        return Trades(taylor=self.taylor, inv_lambda=self.inv_lambda)

    @property
    def needs(self) -> ForwardSpec:
        return self.trades().needs

    def at(self, moment: Moment) -> "GATTrades":
        return replace(self, guide=self.guide.at(moment))

    def inner_attack(self, attack: PGD, context: StepContext) -> Attack:
        return self.guide.attack(attack.threat, context.moment)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        return self.trades()(outputs, y, reduce=reduce)


METHOD = Method(name="gat-trades", objective=GATTrades(), attack=PGD(), paper="Sriramanan et al. 2020")
