"""Measuring: interleaved timings, so that a busy machine disturbs every case alike, and the peak of tensor memory."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one case, one entry a round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


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
    """Time every case once in each round, in turn; the order turns round too, so that no case is always first."""
    names, found = list(cases), {name: [] for name in cases}
    for i in range(-warmup, rounds):
        for name in names if i % 2 else reversed(names):
            settle()
            begun = time.perf_counter()
            cases[name]()
            settle()
            if i >= 0:
                found[name].append(time.perf_counter() - begun)
            advance()
    return {name: Timing(tuple(seconds)) for name, seconds in found.items()}


def settle() -> None:
    """Wait for the device, where there is one to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ratio(above: Timing, below: Timing) -> Ratio:
    """above / below, from the same rounds."""
    each = sorted(a / b for a, b in zip(above.seconds, below.seconds, strict=True))
    low, middle, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    return Ratio(median=statistics.median(each) if len(each) > 1 else middle, low=low, high=high)


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
