"""Measuring: interleaved timings, so that load on the machine falls on every case."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Rounds:
    """One value for each round (seconds, or the ratio of two cases), summarised by median and quartiles."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    def summary(self) -> dict[str, float]:
        """The median and, as `low` and `high`, the quartiles."""
        low, high = np.quantile(self.values, (0.25, 0.75))
        return {"median": self.median, "low": float(low), "high": float(high)}

    def __str__(self) -> str:
        return "{median:.3f} [{low:.3f}, {high:.3f}]".format(**self.summary())

    def __truediv__(self, other: Rounds) -> Rounds:
        """The ratio, round by round: what disturbs a whole round cancels."""
        return Rounds(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))


Call = Callable[[], object]
Timing = dict[str, Rounds]  # seconds by the `wall` clock, and by the `processor` clock of this process's threads


def timed(call: Call) -> dict[str, float]:
    """Seconds of one call by both clocks: on a shared machine only the processor's counts this process alone."""
    synchronize()
    wall, processor = time.perf_counter(), time.process_time()
    call()
    synchronize()
    return {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}


def interleaved(cases: Mapping[str, Call], *, rounds: int, advance: Callable[[], None]) -> dict[str, Timing]:
    """Time every case once in each round, in a random order: a case is slower after some cases than after others."""
    order, found = random.Random(0), {name: [] for name in cases}
    for _ in range(rounds):
        for name in order.sample(list(cases), len(cases)):
            found[name].append(timed(cases[name]))
            advance()
    return {
        name: {clock: Rounds(tuple(each[clock] for each in tries)) for clock in ("wall", "processor")}
        for name, tries in found.items()
    }


def synchronize() -> None:
    """Wait until the device has finished, where there is one to wait for."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
