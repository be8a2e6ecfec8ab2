"""Table 6: seconds an epoch and memory of TRADES with and without Taylor terms, from single steps on this machine."""

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from statistics import median
from typing import Any

import torch

from rattle.data import Dataset, Images
from rattle.paper.blocks import PrintedTable, TableBlock
from rattle.paper.estimate import EPOCH
from rattle.paper.scales import Scale, StepSetup
from rattle.paper.tables import table
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.io import Plain
from rattle.runs.progress import Console
from rattle.runs.source import environment
from rattle.training.minibatch import train_step
from rattle.training.ranks import wrap_model
from rattle.training.state import TrainState, init_state

TIMED_METHODS = {"TRADES": "trades", "TRADES 1st": "trades-1st", "TRADES 1st+2nd": "trades-2nd"}  # as the table's rows
Costs = Mapping[str, tuple[float, float]]  # method, TRADES first -> seconds of an epoch, megabytes
NOTES = (
    "Seconds are the median step times the steps of an epoch of 50,000 images; memory is the peak of live tensors in a "
    "step. Absolute figures belong to a machine; the ratios to TRADES can be compared across machines.",
)


def step_recipe(setup: StepSetup, method: str) -> Recipe:
    recipe = get_recipe(f"cifar10-linf-{setup.model}-{method}")
    attack = replace(recipe.attack, steps=setup.steps)
    return replace(recipe, width=setup.width, batch_size=setup.batch, attack=attack)


def measure_steps(setup: StepSetup, console: Console) -> Costs:
    """Every method, measured here; rounds are interleaved, so that load on the machine falls on every method."""
    states = {name: new_state(step_recipe(setup, method)) for name, method in TIMED_METHODS.items()}
    steps = {name: one_step(state) for name, state in states.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    memory = {}
    with console.progress(f"Table 6, {setup.model}", len(steps) * (setup.rounds + 1)) as advance:
        for name, step in steps.items():
            step()  # from here on the optimizer's buffers and all caches exist
            memory[name] = resident_bytes(states[name]) + peak_memory(step)
            advance()
        for _ in range(setup.rounds):
            for name, step in steps.items():
                times[name].append(seconds_of(step))
                advance()
    return {name: (median(times[name]) * EPOCH / setup.batch, memory[name] / 1e6) for name in steps}


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
    forward, ddp_forward = wrap_model(state)
    images = state.data.train.to(state.device)

    def step() -> None:
        state.optimizer.zero_grad(set_to_none=True)
        train_step(state, forward, ddp_forward, images, torch.arange(len(images)))
        state.optimizer.step()

    return step


def seconds_of(step: Callable[[], None]) -> float:
    begun = time.perf_counter()
    step()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter() - begun


def resident_bytes(state: TrainState) -> int:
    """Bytes that live between steps: weights, buffers, and the optimizer's momentum."""
    tensors = [*state.model.parameters(), *state.model.buffers()]
    for values in state.optimizer.state.values():
        tensors += [value for value in values.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors)


def peak_memory(call: Callable[[], object]) -> int:
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


def published_costs() -> Costs:
    """The paper's figures."""
    return {row.method: (row.cell("seconds").value or 0, row.cell("megabytes").value or 0) for row in table(6).rows}


def cost_table(scale: Scale, measured: Costs, title: str) -> PrintedTable:
    """What was measured here, then the paper's figures, with their ratios to TRADES."""
    setup, machine = scale.cost, environment()
    network = f"{setup.model} (width {setup.width})" if setup.width else setup.model
    caption = f"ours: generated 32x32 images, {network}, batch {setup.batch}"
    caption += f", {machine['device']}, threads: {machine['threads']}, rounds: {setup.rounds}"
    ours, theirs = with_ratios(network, measured), with_ratios(table(6).rows[0].architecture, published_costs())
    blocks = block(caption, ours), block(f"published (paper): {table(6).title}", theirs)
    plain = {"table": 6, "scale": scale.name, "setup": asdict(setup), "rows": ours + theirs}
    return PrintedTable(title=title, blocks=blocks, notes=NOTES, plain=plain)


def with_ratios(network: str, figures: Costs) -> list[Plain]:
    base_seconds, base_megabytes = next(iter(figures.values()))
    rows = []
    for method, (seconds, megabytes) in figures.items():
        row = {"network": network, "method": method, "seconds_an_epoch": seconds, "megabytes": megabytes}
        row |= {"time_ratio": seconds / base_seconds, "memory_ratio": megabytes / base_megabytes}
        rows.append(row)
    return rows


def block(caption: str, figures: list[Plain]) -> TableBlock:
    """Figures as text."""
    rows = []
    for row in figures:
        line = "{method}|{seconds_an_epoch:,.0f}|{time_ratio:.2f}|{megabytes:,.0f}|{memory_ratio:.2f}"
        rows.append(line.format(**row).split("|"))
    return TableBlock(caption=caption, head=["Method", "s an epoch", "of TRADES", "MB", "of TRADES"], rows=rows, left=1)
