"""Run the cases: seconds and peak memory beside the convolutions' limit, growth with the setup, a trace of a step."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from rattle.errors import RattleError, first_line
from rattle.paper.cost import peak_memory
from rattle.runs.progress import Console, NullConsole
from reproduction.bench.cases import METHODS, Case, Group, cases_of
from reproduction.bench.limit import Limit, unavoidable_passes
from reproduction.bench.measure import Call, Rounds, Timing, interleaved
from reproduction.bench.setup import Setup, library_step, prepare, recipe_of

GROUPS: tuple[Group, ...] = ("training", "evaluation", "autoattack")
LIMIT = "the convolutions alone"
AXES: dict[str, tuple[str, tuple[int, ...]]] = {  # field of Setup -> (its title, values)
    "batch": ("images in a batch", (8, 16, 32, 64)),
    "steps": ("K, inner steps", (2, 4, 8, 16)),
    "classes": ("classes", (10, 100, 1000)),
    "width": ("width of the network", (8, 16, 32)),
}


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured."""

    setup: Setup
    rounds: int
    cases: dict[str, Case]
    seconds: dict[str, Timing]
    memory: dict[str, int]  # bytes
    limit: dict[str, Rounds]  # of each training method: its convolutions alone, by the clock of ratios
    flop: dict[str, int]  # of each training method and image: what its convolutions cannot avoid

    def images_per_second(self, name: str) -> float:
        return self.setup.batch / self.seconds[name]["wall"].median

    def share(self, name: str) -> float:
        """How much of a step its convolutions take."""
        return (self.limit[name] / self.seconds[name][self.setup.ratio_clock]).median


def check_rounds(rounds: int | None) -> None:
    if rounds is not None and rounds < 1:
        raise RattleError(f"rounds must be >= 1, got {rounds}")


def bench(
    setup: Setup, *, rounds: int = 5, groups: tuple[Group, ...] = GROUPS, console: Console | None = None
) -> Result:
    """Measure the groups of cases, and beside training steps their convolutions alone."""
    check_rounds(rounds)
    subject = prepare(setup)
    dtype = torch.bfloat16 if setup.precision == "bf16" else torch.float32
    limit = Limit(subject.fast, subject.x, clock=setup.ratio_clock, dtype=dtype)
    cases = cases_of(subject, groups)
    extra = {LIMIT: limit} if "training" in groups else {}
    seconds, memory = measure(f"bench {setup.model}", setup, cases, rounds=rounds, extra=extra, console=console)
    passes = {n: unavoidable_passes(recipe_of(setup, METHODS[n])) for n in METHODS if n in cases}
    limits = {name: limit.rounds(each) for name, each in passes.items()}
    flop = {name: limit.flop(each) for name, each in passes.items()}
    return Result(setup, rounds, cases, seconds, memory, limits, flop)


def measure(
    title: str,
    setup: Setup,
    cases: Mapping[str, Case],
    *,
    rounds: int,
    extra: Mapping[str, Call] | None = None,
    console: Console | None = None,
) -> tuple[dict[str, Timing], dict[str, int]]:
    """Seconds and peak bytes of every case: each round runs each case once, and each `extra` call."""
    calls = {**{name: case.run for name, case in cases.items()}, **(extra or {})}
    with (console or NullConsole()).progress(title, len(cases) + rounds * len(calls)) as advance:
        memory = {}
        for name, case in cases.items():
            memory[name] = peak_of(case, setup)
            advance()
        seconds = interleaved(calls, rounds=rounds, advance=advance)
    return {name: seconds[name] for name in cases}, memory


def peak_of(case: Case, setup: Setup) -> int:
    """Peak memory of a case: what lives all the time and what a call adds."""
    try:
        case.short()  # momentum buffers and caches exist from here on
    except Exception as reason:  # whatever the compiler finds missing or cannot do
        if not setup.compile:
            raise
        raise RattleError(f"torch.compile does not work here: {first_line(reason)}") from reason
    return case.resident + peak_memory(case.short)


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
    return float(np.polyfit(np.log(values), np.log(costs), 1)[0])


def growth(
    setup: Setup,
    *,
    axes: Mapping[str, tuple[str, tuple[int, ...]]] = AXES,
    rounds: int = 3,
    console: Console | None = None,
) -> list[Curve]:
    """How a step's cost grows along each axis from the setup given; the values of an axis are interleaved."""
    found = []
    for field, (title, values) in axes.items():
        cases = {}
        for value in values:
            run = library_step(prepare(replace(setup, **{field: value})), "trades-2nd")
            cases[str(value)] = Case("training", "ours", run, run)
        times, memory = measure(f"growth, {title}", setup, cases, rounds=rounds, console=console)
        seconds = tuple(timing[setup.ratio_clock].median for timing in times.values())
        slopes = exponent(values, seconds), exponent(values, list(memory.values()))
        found.append(Curve(field, title, values, seconds, tuple(memory.values()), *slopes))
    return found


def trace(setup: Setup, path: Path) -> None:
    """Write a chrome trace of one TRADES 1st+2nd step, its parts marked by name."""
    run = library_step(prepare(setup), "trades-2nd")
    run()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter
    with torch.profiler.profile() as profile:
        run()
    path.parent.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(path))
