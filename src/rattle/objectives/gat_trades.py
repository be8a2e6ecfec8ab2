"""TRADES with the attack of guided adversarial training (Sriramanan et al. 2020)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from rattle.attacks import PGD, Attack
from rattle.objectives.base import ONE_STEP, Method, Moment, StepContext
from rattle.objectives.gat import GAT, Guide
from rattle.objectives.trades import Trades


@dataclass(frozen=True, slots=True, kw_only=True)
class GATTrades(Trades):
    """CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + Taylor terms, x' of one guided step."""

    title: ClassVar[str] = "GAT-TRADES"
    unused: ClassVar[tuple[str, ...]] = ONE_STEP
    guide: Guide = Guide()  # the attack

    def at(self, moment: Moment) -> "GATTrades":
        return replace(self, guide=self.guide.at(moment))

    def inner_attack(self, attack: PGD, context: StepContext) -> Attack:
        return self.guide.attack(attack.threat, context.moment)

    def inner_passes(self, steps: int) -> tuple[int, int]:
        return GAT().inner_passes(steps)


METHOD = Method(
    objective=GATTrades(),
    attack=PGD(),
)
