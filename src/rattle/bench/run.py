"""One interleaved run over all cases: seconds round by round, peak memory, and the convolutions' limit beside them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rattle.bench.cases import METHODS, Case, Group, all_cases
from rattle.bench.limit import Limit, Passes
from rattle.bench.measure import Ratio, Timing, interleaved, peak_memory, ratio
from rattle.bench.setup import Setup, Subject, prepare, recipe_of
from rattle.errors import RattleError
from rattle.forward import Outputs, PairedForward
from rattle.models import find_head
from rattle.runs.progress import Console, NullConsole
from rattle.training.state import make_optimizer
from rattle.training.step import step

GROUPS: tuple[Group, ...] = ("training", "evaluation", "autoattack")
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
LIMIT = "the convolutions alone"


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured."""

    setup: Setup
    rounds: int
    clock: str  # that ratios are counted by
    cases: dict[str, Case]
    seconds: dict[str, Timing]
    memory: dict[str, int]  # bytes
    limit: dict[str, Timing]  # of each training method: its convolutions alone, by that clock
    flop: dict[str, int]  # of each training method and image: what its convolutions cannot avoid

    def share(self, name: str) -> Ratio:
        """How much of a step its convolutions take."""
        return ratio(self.limit[name], self.seconds[name].on(self.clock))


def bench(
    setup: Setup,
    *,
    rounds: int = 5,
    groups: tuple[Group, ...] = GROUPS,
    clock: str | None = None,
    console: Console | None = None,
) -> Result:
    """Measure everything, interleaved: each round runs each case once."""
    if rounds < 1:
        raise RattleError(f"rounds must be >= 1, got {rounds}")
    clock = clock or fair_clock(setup)
    subject = prepare(setup)
    cases = all_cases(subject, groups)
    limit = Limit(
        subject.fast,
        subject.x,
        clock=CLOCKS[clock],
        dtype=torch.bfloat16 if setup.precision == "bf16" else torch.float32,
    )
    timed: dict[str, Callable[[], object]] = {name: case.run for name, case in cases.items()}
    if "training" in groups:
        timed[LIMIT] = limit
    total = sum(case.short is not None for case in cases.values()) + rounds * len(timed)
    with (console or NullConsole()).progress(f"bench {setup.model}", total) as advance:
        memory = peaks(setup, cases, advance)
        seconds = interleaved(timed, rounds=rounds, warmup=0, advance=advance)  # warmed up by `peaks`
    seconds.pop(LIMIT, None)
    passes = {name: passes_of(subject, name) for name in METHODS if name in cases}
    return Result(
        setup=setup,
        rounds=rounds,
        clock=clock,
        cases=cases,
        seconds=seconds,
        memory=memory,
        limit={name: limit.timing(each, rounds) for name, each in passes.items()},
        flop={name: limit.flop(each) for name, each in passes.items()},
    )


def fair_clock(setup: Setup) -> str:
    """What ratios are counted in: on a CPU processor seconds, which other people's work on the machine hardly moves."""
    return "processor" if setup.where.type == "cpu" else "wall"


def peaks(setup: Setup, cases: dict[str, Case], advance: Callable[..., None]) -> dict[str, int]:
    """Peak memory of each case: what lives all the time and what a call adds, momentum and caches being there."""
    found = {}
    for name, case in cases.items():
        if case.short is None:
            continue
        try:
            case.short()  # momentum buffers exist from here on
        except Exception as reason:  # whatever the compiler finds missing or cannot do
            if not setup.compile:
                raise
            said = (str(reason).strip() or type(reason).__name__).splitlines()[0]
            raise RattleError(f"torch.compile does not work here: {said}") from reason
        found[name] = case.resident + peak_memory(case.short)
        advance()
    return found


def passes_of(subject: Subject, name: str) -> Passes:
    recipe = recipe_of(subject.setup, METHODS[name])
    return Passes.of(
        steps=recipe.attack.steps,
        clean_target=recipe.attack.loss == "kl",
        looks=2 if recipe.objective.needs.clean else 1,
        awp=recipe.awp is not None,
    )


def trace(setup: Setup, path: Path, *, method: str = "TRADES 1st+2nd") -> None:
    """Write a chrome trace of one step, its parts marked by name."""
    subject = prepare(setup)
    recipe, model = recipe_of(setup, METHODS[method]), subject.fast.train()
    optimizer, views = make_optimizer(recipe, model), PairedForward(model, recipe.objective.needs, find_head(model))
    attack, mark = recipe.attack, torch.profiler.record_function

    def marked_attack(*args: object, **settings: object) -> Tensor:
        with mark("rattle: inner maximisation"):
            return attack(*args, **settings)  # type: ignore[arg-type]

    def marked_views(*args: Any) -> Outputs:
        with mark("rattle: outer forwards at x and x'"):
            return views(*args)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        with mark("rattle: step"), subject.autocast:
            step(
                views,
                subject.x,
                subject.y,
                attack=marked_attack,  # type: ignore[arg-type]
                noise=recipe.noise,
                objective=recipe.objective,
                awp=recipe.awp,
                shared=torch.Generator().manual_seed(0),
                private=subject.streams(),
                ddp_forward=marked_views,
            )
        optimizer.step()

    run()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter
    with torch.profiler.profile() as profile:
        run()
    path.parent.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(path))
