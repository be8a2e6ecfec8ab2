"""Measuring: interleaved timings, so that a busy machine disturbs every case alike, and the peak of tensor memory."""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one case, one entry a round: by the wall clock, and of this process's threads."""

    seconds: tuple[float, ...]
    processor: tuple[float, ...] = ()

    def on(self, clock: str) -> Timing:
        """The same by the `wall` or by the `processor` clock."""
        return Timing(self.processor) if clock == "processor" else self

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        return quartiles(self.seconds)[0]

    @property
    def high(self) -> float:
        return quartiles(self.seconds)[2]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two cases, round by round: its median and its quartiles."""

    median: float
    low: float
    high: float


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time every case once in each round, in an order drawn anew: a case is slower after some cases than after others.

    Both clocks are read: on a machine that others use, only the processor's counts this process alone.
    """
    order, found = random.Random(0), {name: ([], []) for name in cases}
    for i in range(-warmup, rounds):
        for name in order.sample(list(cases), len(cases)):
            settle()
            begun = (time.perf_counter(), time.process_time())
            cases[name]()
            settle()
            ended = (time.perf_counter(), time.process_time())
            for kept, first, last in zip(found[name], begun, ended, strict=True):
                kept.extend([last - first] if i >= 0 else [])
            advance()
    return {name: Timing(tuple(wall), tuple(processor)) for name, (wall, processor) in found.items()}


def settle() -> None:
    """Wait for the device, where there is one to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; never beyond what was measured."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(above: Timing, below: Timing) -> Ratio:
    """above / below, from the same rounds."""
    low, middle, high = quartiles([a / b for a, b in zip(above.seconds, below.seconds, strict=True)])
    return Ratio(median=middle, low=low, high=high)


def peak_memory(case: Callable[[], object]) -> int:
    """Most bytes of tensors alive at once during the call, beyond those alive before it.

    On a GPU the allocator keeps count; on a CPU every allocation and release is recorded by the profiler and summed.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    gc.collect()  # garbage that is only released during the call would count against its peak
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        case()
    recorded: Any = profile.profiler
    events = recorded.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak
