"""TRADES with the attack of friendly adversarial training (Zhang et al. 2020)."""

from dataclasses import dataclass

from rattle.objectives.base import Method
from rattle.objectives.fat import FAT
from rattle.objectives.trades import KL_ATTACK, Trades
from rattle.settings import CountOrZero


@dataclass(frozen=True, slots=True, kw_only=True)
class FATTrades(Trades):
    """CE(f(x), y) + (1/lambda) KL(p(x) || p(x')) + Taylor terms, x' of early-stopped PGD on the KL."""

    title = "FAT-TRADES"
    soft_labels = FAT.soft_labels
    unused = FAT.unused
    raise_at = (30 / 85, 50 / 85, 70 / 85)
    omega = 0.0
    tau: CountOrZero = 0  # steps that the attack still makes at a misclassified point, in the first epoch
    attack = FAT.attack


METHOD = Method(
    objective=FATTrades(),
    attack=KL_ATTACK,
)
