"""Schedules: the factor on the peak learning rate at a fraction t of the run, and the epochs whose weights are kept.

Any length of a run keeps their shape.
"""

import math
from dataclasses import dataclass
from typing import Literal

from rattle.errors import RattleError
from rattle.settings import BelowOne, Between, Positive, check_settings

WARM_START = 0.01  # where a warm-up begins: at 0 the first step would do nothing
CYCLE_START = 0.04  # the factor at the start of a cycle, as in torch's OneCycleLR
CYCLE_END = {"linear": 0.001, "cosine": 4e-6}  # and at its end, by its shape; the cosine's is OneCycleLR's
DROPS = (0.5, 0.75)  # fractions of a run at which the paper's learning rate drops
DENSELY_KEPT = 0.05  # share of the run after a drop in which every epoch is kept
SPARSELY_KEPT = 0.025  # share of the run between the epochs that are kept after that

KeptEpochs = Literal["none", "paper", "all"]


def warm_up(t: float, end: float) -> float:
    """The factor of a linear rise that ends at fraction `end` of the run; 1 from there on."""
    return WARM_START + (1 - WARM_START) * t / end if t < end else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piecewise:
    """The paper's: divided by 10 at epochs 100 and 150 of 200.

    >>> [Piecewise()(t) for t in (0, 0.5, 0.75)] == [1, 0.1, 0.1 * 0.1]
    True
    """

    drops: tuple[Between, ...] = DROPS  # fractions of the run at which the rate drops
    factor: Positive = 0.1  # what it is multiplied by at each drop
    warmup: BelowOne = 0.0  # fraction of the run, before the first drop, in which the rate rises to its peak

    def __post_init__(self) -> None:
        check_settings(self, "schedule")
        if self.drops and self.warmup >= min(self.drops):
            raise RattleError(f"schedule.warmup must end before the first of schedule.drops, got {self.warmup}")

    def __call__(self, t: float) -> float:
        return warm_up(t, self.warmup) * self.factor ** sum(t >= drop for drop in self.drops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine:
    """From the peak down to 0 along half a cosine, after a linear rise if `warmup` is set.

    >>> [round(Cosine(warmup=0.2)(t), 3) for t in (0, 0.1, 0.2, 0.6, 1)]
    [0.01, 0.505, 1.0, 0.5, 0.0]
    """

    warmup: BelowOne = 0.0  # fraction of the run in which the rate rises to its peak

    def __post_init__(self) -> None:
        check_settings(self, "schedule")

    def __call__(self, t: float) -> float:
        if t < self.warmup:
            return warm_up(t, self.warmup)
        t = (t - self.warmup) / (1 - self.warmup)
        return 0.5 * (1 + math.cos(math.pi * t))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCycle:
    """Up to the peak and down again (Smith and Topin 2018), along lines or half cosines.

    >>> [round(OneCycle(peak=0.2, shape="cosine")(t), 3) for t in (0, 0.05, 0.2, 0.4, 1)]
    [0.04, 0.181, 1.0, 0.854, 0.0]
    """

    peak: Between = 0.4  # fraction of the run at which the peak is reached; 0.3 in torch's OneCycleLR
    shape: Literal["linear", "cosine"] = "linear"  # of the way up and the way down

    def __post_init__(self) -> None:
        check_settings(self, "schedule")

    def __call__(self, t: float) -> float:
        if t < self.peak:
            return CYCLE_START + (1 - CYCLE_START) * self.eased(t / self.peak)
        return 1 + (CYCLE_END[self.shape] - 1) * self.eased((t - self.peak) / (1 - self.peak))

    def eased(self, share: float) -> float:
        """How much of a change is made after a share of its time."""
        return share if self.shape == "linear" else 0.5 * (1 - math.cos(math.pi * share))


def kept_epochs(which: KeptEpochs, epochs: int) -> tuple[int, ...]:
    """The epochs of a run, counted from 1, whose checkpoints are kept.

    The paper's (Appendix B): of 200 epochs, each in 100-110 and 150-160 and every 5th between and after.

    >>> kept = kept_epochs("paper", 200)
    >>> kept[:3], kept[10:13], kept[-1], len(kept)
    ((100, 101, 102), (110, 115, 120), 200, 37)
    """
    if which == "none":
        return ()
    if which == "all":
        return tuple(range(1, epochs + 1))
    every = max(round(SPARSELY_KEPT * epochs), 1)
    found = []
    for epoch in range(1, epochs + 1):
        t = epoch / epochs
        dense = any(drop <= t <= drop + DENSELY_KEPT for drop in DROPS)
        if dense or epoch == epochs or (t > DROPS[0] and epoch % every == 0):
            found.append(epoch)
    return tuple(found)
