"""How a step's cost grows: time and peak memory against batch, K, classes and width, with fitted exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rattle.bench.measure import interleaved, peak_memory
from rattle.bench.run import fair_clock
from rattle.bench.setup import Setup, library_step, prepare
from rattle.runs.progress import Console, NullConsole

Axes = Mapping[str, tuple[str, tuple[int, ...]]]
AXES: Axes = {  # field of Setup -> (its title, values)
    "batch": ("images in a batch", (8, 16, 32, 64)),
    "steps": ("K, inner steps", (2, 4, 8, 16)),
    "classes": ("classes", (10, 100, 1000)),
    "width": ("width of the network", (8, 16, 32)),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """Cost of one TRADES 1st+2nd step against one setting, the others held."""

    field: str
    title: str
    values: tuple[int, ...]
    seconds: tuple[float, ...]  # medians
    bytes: tuple[int, ...]
    time_exponent: float
    memory_exponent: float


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost against log value, by least squares.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return statistics.linear_regression([math.log(v) for v in values], [math.log(c) for c in costs]).slope


def growth(
    setup: Setup,
    *,
    axes: Axes = AXES,
    rounds: int = 3,
    clock: str | None = None,
    console: Console | None = None,
) -> list[Curve]:
    """Measure every axis from the setup given; the values of an axis take turns, so that load falls on all alike."""
    found = []
    total = sum((rounds + 1) * len(values) for _, values in axes.values())
    with (console or NullConsole()).progress("growth", total) as advance:
        for field, (title, values) in axes.items():
            cases, memory = {}, []
            for value in values:
                run = library_step(prepare(replace(setup, **{field: value})), "trades-2nd")
                run()
                memory.append(peak_memory(run))
                cases[str(value)] = run
                advance()
            times = interleaved(cases, rounds=rounds, warmup=0, advance=advance)
            seconds = tuple(timing.on(clock or fair_clock(setup)).median for timing in times.values())
            slopes = exponent(values, seconds), exponent(values, memory)
            found.append(Curve(field, title, values, seconds, tuple(memory), *slopes))
    return found
