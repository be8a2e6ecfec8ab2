"""Schedules: the factor on the peak learning rate at a fraction t of the run, and the epochs whose weights are kept.

Any length of a run keeps their shape.
"""

import math
from dataclasses import dataclass
from typing import Literal

from rattle.errors import RattleError
from rattle.settings import check_settings

WARM_START = 0.01  # where a warm-up begins: at 0 the first step would do nothing


def warm_up(t: float, end: float) -> float:
    """The factor of a linear rise that ends at fraction `end` of the run; 1 from there on."""
    return WARM_START + (1 - WARM_START) * t / end if t < end else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piecewise:
    """The paper's: divided by 10 at epochs 100 and 150 of 200.

    >>> [Piecewise()(t) for t in (0, 0.5, 0.75)] == [1, 0.1, 0.1 * 0.1]
    True
    """

    drops: tuple[float, ...] = (0.5, 0.75)  # fractions of the run at which the rate drops
    factor: float = 0.1  # what it is multiplied by at each drop
    warmup: float = 0.0  # fraction of the run, before the first drop, in which the rate rises to its peak

    def __post_init__(self) -> None:
        if not all(0 < drop < 1 for drop in self.drops):
            raise RattleError(f"schedule.drops are fractions of the run, between 0 and 1, got {self.drops}")
        if not self.factor > 0:
            raise RattleError(f"schedule.factor must be > 0, got {self.factor}")
        if not 0 <= self.warmup < min(self.drops, default=1):
            raise RattleError(f"schedule.warmup must be >= 0 and end before the first drop, got {self.warmup}")

    def __call__(self, t: float) -> float:
        return warm_up(t, self.warmup) * self.factor ** sum(t >= drop for drop in self.drops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine:
    """From the peak down to `floor` along half a cosine, after a linear rise if `warmup` is set.

    >>> [round(Cosine(warmup=0.2)(t), 3) for t in (0, 0.1, 0.2, 0.6, 1)]
    [0.01, 0.505, 1.0, 0.5, 0.0]
    """

    floor: float = 0.0  # factor at the end
    warmup: float = 0.0  # fraction of the run in which the rate rises to its peak

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1:
            raise RattleError(f"schedule.warmup is a fraction of the run, from 0 to below 1, got {self.warmup}")
        if not 0 <= self.floor <= 1:
            raise RattleError(f"schedule.floor is a factor from 0 to 1, got {self.floor}")

    def __call__(self, t: float) -> float:
        if t < self.warmup:
            return warm_up(t, self.warmup)
        t = (t - self.warmup) / (1 - self.warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * t))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCycle:
    """From `first` to the peak and down to `last` (Smith and Topin 2018), along lines or half cosines.

    torch's OneCycleLR has cosines, a peak at 0.3 and `last` 4e-6.

    >>> [round(OneCycle(peak=0.2, first=0.0, last=0.0, shape="cosine")(t), 3) for t in (0, 0.05, 0.2, 0.4, 1)]
    [0.0, 0.146, 1.0, 0.854, 0.0]
    """

    peak: float = 0.4  # fraction of the run at which the peak is reached
    first: float = 0.04  # factor at the start
    last: float = 0.001  # factor at the end
    shape: Literal["linear", "cosine"] = "linear"  # of the way up and the way down

    def __post_init__(self) -> None:
        check_settings(self, "schedule")
        if not 0 < self.peak < 1:
            raise RattleError(f"schedule.peak is a fraction of the run, between 0 and 1, got {self.peak}")
        if not (0 <= self.first <= 1 and 0 <= self.last <= 1):
            raise RattleError(f"schedule.first and last are factors from 0 to 1, got {self.first} and {self.last}")

    def __call__(self, t: float) -> float:
        if t < self.peak:
            return self.first + (1 - self.first) * self.eased(t / self.peak)
        return 1 + (self.last - 1) * self.eased((t - self.peak) / (1 - self.peak))

    def eased(self, share: float) -> float:
        """How much of a change is made after a share of its time."""
        return share if self.shape == "linear" else 0.5 * (1 - math.cos(math.pi * share))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSchedule:
    """The paper's (Appendix B): of 200 epochs, each in 100-110 and 150-160 and every 5th between and after.

    >>> kept = CheckpointSchedule().epochs(200)
    >>> kept[:3], kept[10:13], kept[-1], len(kept)
    ((100, 101, 102), (110, 115, 120), 200, 37)
    """

    drops: tuple[float, ...] = (0.5, 0.75)  # fractions of the run; from each on, the checkpoint of every epoch is kept
    dense: float = 0.05  # for that much of the run
    sparse: float = 0.025  # and beyond it, until the next drop, one every so much of the run

    def __post_init__(self) -> None:
        if not self.drops or not all(0 <= drop < 1 for drop in self.drops):
            raise RattleError(f"keep.drops are fractions of the run, from 0 to below 1, got {self.drops}")
        if not (self.dense >= 0 and self.sparse >= 1e-4):
            both = f"{self.dense} and {self.sparse}"
            raise RattleError(f"keep.dense must be >= 0 and keep.sparse >= 0.0001 of the run, got {both}")

    def epochs(self, epochs: int) -> tuple[int, ...]:
        """The epochs, counted from 1, of a run of that many; the last is always among them."""
        found, starts = {epochs}, sorted(self.drops)
        for start, end in zip(starts, [*starts[1:], 1.0], strict=True):
            turn = round(start * epochs + self.dense * epochs)
            found |= set(range(max(round(start * epochs), 1), min(turn, epochs) + 1))
            steps = range(1, math.ceil((end - start - self.dense) / self.sparse))
            found |= {min(round((start + self.dense + i * self.sparse) * epochs), epochs) for i in steps}
        return tuple(sorted(found - {0}))
