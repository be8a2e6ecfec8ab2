"""TRADES with the attack of friendly adversarial training (Zhang et al. 2020)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from rattle.attacks import PGD, Attack
from rattle.forward import ForwardSpec, Outputs
from rattle.objectives.base import Method, Moment, Reduce, StepContext, unreduced
from rattle.objectives.fat import EarlyStop, EarlyStoppedPGD
from rattle.objectives.taylor_terms import Taylor
from rattle.objectives.trades import Trades


@dataclass(frozen=True, slots=True, kw_only=True)
class FATTrades:
    """CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + Taylor terms, x' of early-stopped PGD on the KL."""

    title: ClassVar[str] = "FAT-TRADES"
    unused: ClassVar[tuple[str, ...]] = ("restarts",)
    taylor: Taylor = Taylor()  # the paper's first- and second-order terms
    inv_lambda: float = 6.0  # 1/lambda, weight of the KL term (TRADES' beta)
    stop: EarlyStop = EarlyStop(raise_at=(30 / 85, 50 / 85, 70 / 85), omega=0.0)  # when the attack on an image stops

    def __post_init__(self) -> None:
        self.trades()  # checks inv_lambda

    def trades(self) -> Trades:
        return Trades(taylor=self.taylor, inv_lambda=self.inv_lambda)

    @property
    def needs(self) -> ForwardSpec:
        return self.trades().needs

    def at(self, moment: Moment) -> "FATTrades":
        return replace(self, stop=self.stop.at(moment))

    def inner_attack(self, attack: PGD, context: StepContext) -> Attack:
        return EarlyStoppedPGD(pgd=attack, stop=self.stop)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        return self.trades()(outputs, y, reduce=reduce)


METHOD = Method(
    name="fat-trades", objective=FATTrades(), attack=PGD(loss="kl", start="gaussian"), paper="Zhang et al. 2020"
)
