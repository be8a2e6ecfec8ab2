"""TRADES with the attack of friendly adversarial training (Zhang et al. 2020)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from rattle.attacks import PGD, Attack
from rattle.objectives.base import Method, Moment, StepContext
from rattle.objectives.fat import EarlyStop, EarlyStoppedPGD
from rattle.objectives.trades import Trades


@dataclass(frozen=True, slots=True, kw_only=True)
class FATTrades(Trades):
    """CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + Taylor terms, x' of early-stopped PGD on the KL."""

    title: ClassVar[str] = "FAT-TRADES"
    soft_labels: ClassVar[bool] = False  # what is misclassified is told by the label
    unused: ClassVar[tuple[str, ...]] = ("restarts",)
    stop: EarlyStop = EarlyStop(raise_at=(30 / 85, 50 / 85, 70 / 85), omega=0.0)  # when the attack on an image stops

    def at(self, moment: Moment) -> "FATTrades":
        return replace(self, stop=self.stop.at(moment))

    def inner_attack(self, attack: PGD, context: StepContext) -> Attack:
        return EarlyStoppedPGD(pgd=attack, stop=self.stop)


METHOD = Method(
    objective=FATTrades(),
    attack=PGD(loss="kl", start="gaussian"),
)
