"""Table 6: seconds an epoch and memory of TRADES with and without Taylor terms, from single steps on this machine."""

import gc
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from rattle.data import Dataset, Images
from rattle.paper.blocks import Block, PrintedRow, PrintedTable
from rattle.paper.estimate import EPOCH, Sizes, forward_seconds, step_passes
from rattle.paper.scales import Scale, StepSetup
from rattle.paper.tables import table
from rattle.recipes.catalog import get_recipe
from rattle.recipes.reading import parse_json
from rattle.recipes.recipe import Recipe
from rattle.runs.distributed import choose_device
from rattle.runs.environment import environment
from rattle.runs.io import write_atomically
from rattle.runs.progress import Console
from rattle.training.minibatch import train_step
from rattle.training.ranks import wrap_model
from rattle.training.state import TrainState, init_state

METHODS = {"TRADES": "trades", "TRADES 1st": "trades-1st", "TRADES 1st+2nd": "trades-2nd"}  # as the table's rows
Figures = tuple[float, float, float, float]  # seconds an epoch, their ratio to TRADES, megabytes, their ratio
KEYS = ("seconds_an_epoch", "time_ratio", "megabytes", "memory_ratio")
NOTES = (
    "Seconds are the median step times the steps of an epoch of 50,000 images; memory is the peak of live tensors in a "
    "step. Absolute figures belong to a machine; the ratios to TRADES can be compared across machines.",
)


def recipe_of(setup: StepSetup, method: str) -> Recipe:
    recipe = get_recipe(f"cifar10-linf-{setup.model}-{method}")
    attack = replace(recipe.attack, steps=setup.steps)
    return replace(recipe, width=setup.width, batch_size=setup.batch, attack=attack)


def estimated_seconds(scale: Scale) -> float:
    """What measuring will take: every method once for its memory, and once a round."""
    setup, sizes = scale.cost, Sizes(scale.cost.batch, 0, 0)
    total = 0.0
    for method in METHODS.values():
        recipe = recipe_of(setup, method)
        total += setup.batch * step_passes(recipe) * forward_seconds(recipe, sizes, choose_device().type)
    return total * (setup.rounds + 2)


def measure(scale: Scale, path: Path, console: Console) -> dict[str, dict[str, float]]:
    """Seconds, processor seconds and peak bytes of a step of each method; read from the file if it has the settings."""
    machine = environment()
    del machine["commit"]
    settings = {"setup": asdict(scale.cost), "environment": machine}
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = parse_json(path.read_text(encoding="utf-8"))
        if all(stored[key] == json.loads(json.dumps(value)) for key, value in settings.items()):
            return stored["measured"]
    states = {name: new_state(recipe_of(scale.cost, method)) for name, method in METHODS.items()}
    steps = {name: one_step(state) for name, state in states.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    memory = {}
    with console.progress(f"Table 6, {scale.cost.model}", len(steps) * (scale.cost.rounds + 1)) as advance:
        for name, step in steps.items():
            step()  # from here on the optimizer's buffers and all caches exist
            memory[name] = resident_bytes(states[name]) + peak_memory(step)
            advance()
        for _ in range(scale.cost.rounds):  # interleaved: load on the machine falls on every method
            for name, step in steps.items():
                found[name].append(timed(step))
                advance()
    measured = {}
    for name, times in found.items():
        wall, processor = (median(column) for column in zip(*times, strict=True))
        measured[name] = {"seconds": wall, "processor": processor, "bytes": memory[name]}
    write_atomically(path, json.dumps({**settings, "measured": measured}, indent=1).encode())
    return measured


def new_state(recipe: Recipe) -> TrainState:
    """A run of a recipe on one minibatch of generated images."""
    n = recipe.batch_size
    x = torch.randint(256, (n, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images = Images(x, torch.arange(n) % 10)
    state = init_state(recipe, Dataset(name="generated", train=images, test=images, classes=tuple("0123456789")))
    state.train_mode()
    return state


def one_step(state: TrainState) -> Callable[[], None]:
    """A training step, each time on the same images."""
    forward, ddp_forward = wrap_model(state.model, state.recipe)
    images = state.data.train.to(state.device)

    def step() -> None:
        state.optimizer.zero_grad(set_to_none=True)
        train_step(state, forward, ddp_forward, images, torch.arange(len(images)))
        state.optimizer.step()

    return step


def resident_bytes(state: TrainState) -> int:
    """Bytes that live between steps: weights, buffers, and the optimizer's momentum."""
    tensors = [*state.model.parameters(), *state.model.buffers()]
    for values in state.optimizer.state.values():
        tensors += [value for value in values.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors)


def timed(call: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the wall clock, and those that ratios are made of: CPU time, or on a GPU the wall clock again.

    On a shared machine only the CPU time counts this process alone.
    """
    on_gpu = torch.accelerator.is_available()
    if on_gpu:
        torch.accelerator.synchronize()
    wall, processor = time.perf_counter(), time.process_time()
    call()
    if on_gpu:
        torch.accelerator.synchronize()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return wall, wall if on_gpu else processor


def peak_memory(call: Callable[[], None]) -> int:
    """Most bytes of tensors alive at once during the call, beyond those alive before it."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    gc.collect()  # garbage that is only released during the call would count against its peak
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler's own log
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    recorded: Any = profile.profiler
    changes = [(e.start_ns(), e.nbytes()) for e in recorded.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for _, change in sorted(changes):
        alive += change
        peak = max(peak, alive)
    return peak


def printed_table(scale: Scale, measured: Mapping[str, Mapping[str, float]], title: str) -> PrintedTable:
    """What was measured here, then the paper's figures, with their ratios to TRADES."""
    setup, machine = scale.cost, environment()
    network = f"{setup.model} (width {setup.width})" if setup.width else setup.model
    caption = f"ours: generated 32x32 images, {network}, batch {setup.batch}"
    caption += f", {machine['device']}, threads: {machine['threads']}, rounds: {setup.rounds}"
    published = table(6)
    here, there = measured_figures(measured, setup), published_figures()
    rows = []
    for whose, figures in ((network, here), (published.rows[0].architecture, there)):
        for method, values in figures.items():
            rows.append({"network": whose, "method": method, **dict(zip(KEYS, values, strict=True))})
    return PrintedTable(
        title=title,
        blocks=(block(caption, here, "ours"), block(f"published (paper): {published.title}", there, "paper")),
        notes=NOTES,
        plain={"table": 6, "scale": scale.name, "setup": asdict(setup), "rows": rows},
    )


def measured_figures(measured: Mapping[str, Mapping[str, float]], setup: StepSetup) -> dict[str, Figures]:
    base = measured["TRADES"]
    found = {}
    for name, one in measured.items():
        ratio = one["processor"] / base["processor"]
        epoch = one["seconds"] * EPOCH / setup.batch
        found[name] = (epoch, ratio, one["bytes"] / 1e6, one["bytes"] / base["bytes"])
    return found


def published_figures() -> dict[str, Figures]:
    rows = table(6).rows
    base_seconds, base_memory = (rows[0].cell(column).value or math.nan for column in ("seconds", "megabytes"))
    found = {}
    for row in rows:
        seconds, memory = (row.cell(column).value or math.nan for column in ("seconds", "megabytes"))
        found[row.method] = (seconds, seconds / base_seconds, memory, memory / base_memory)
    return found


def block(caption: str, figures: Mapping[str, Sequence[float]], kind: Any) -> Block:
    rows = []
    for method, (seconds, time_ratio, memory, memory_ratio) in figures.items():
        cells = (f"{seconds:,.0f}", f"{time_ratio:.2f}", f"{memory:,.0f}", f"{memory_ratio:.2f}")
        rows.append(PrintedRow(kind=kind, labels=(method,), cells=cells))
    columns = ("s an epoch", "of TRADES", "MB", "of TRADES")
    return Block(caption=caption, labels=("Method",), columns=columns, rows=tuple(rows))
