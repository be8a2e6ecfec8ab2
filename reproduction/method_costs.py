"""What a training step of each method costs over a step of TRADES: processor time, interleaved, work and memory.

    python -m reproduction.method_costs --rounds 10

A step near the end of a run (averages have begun, FAT attacks longest) on the digits, from the weights of the zoo's
TRADES network, one thread: random weights would flatter methods whose attack ends early. Two steps are timed together,
because GAT alternates. `demanded` are the convolutions that a method's passes cannot avoid, `done` the operations that
its steps did (counted by torch), both over TRADES'. Memory is the most bytes of tensors alive at once in two steps,
beyond what is there before (weights, teachers, averages). Teachers that are trained first are not part of a step.
Writes reproduction/results/method-costs.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rattle.data import on_device
from rattle.inputs import floats_for
from rattle.objectives.registry import METHODS
from rattle.paper.cost import peak_memory
from rattle.recipes.catalog import get_recipe
from rattle.runs.io import write_atomically
from rattle.runs.source import environment
from rattle.training.loop import update_average
from rattle.training.metrics import FlopCounter
from rattle.training.minibatch import train_step
from rattle.training.ranks import wrap_model
from rattle.training.state import init_state
from reproduction.bench.limit import Limit, unavoidable_passes
from reproduction.bench.measure import interleaved

VARIANTS = ("at-1st", "at-2nd", "trades-1st", "trades-2nd", "trades-awp", "trades-awp-2nd", "trades-sam", "mart-2nd")
NAMES = (*(name for name in METHODS if name != "sota"), *VARIANTS)  # sota needs generated images
BASE = "trades"


@dataclass(frozen=True, slots=True)
class Steps:
    """Two training steps of a method, and the floating-point operations that convolutions of its passes take."""

    run: Callable[[], None]
    demanded: int


def two_steps(name: str, batch: int) -> Steps:
    """Two steps on the first images; the weights stay as they are."""
    recipe = get_recipe(f"digits-linf-cnn-{name}")
    recipe = replace(recipe, init="zoo:digits-linf-cnn-trades", threads=1, batch_size=batch)
    data = recipe.data.load()
    state = init_state(recipe, data)
    state.progress.epoch = recipe.epochs - 1
    update_average(state, begins=True)
    state.train_mode()
    forward, ddp_forward = wrap_model(state)
    images, index = on_device(data.train, state.device), torch.arange(batch)

    def run() -> None:
        for _ in range(2):
            train_step(state, forward, ddp_forward, images, index)
            state.progress.step += 1
            for network in (state.model, *state.cotrained.values()):
                network.zero_grad()

    limit = Limit(state.model, floats_for(state.model, images.x[:1]))
    return Steps(run, 2 * batch * limit.flop(unavoidable_passes(recipe)) // recipe.replays)


def work_of(call: Callable[[], object]) -> int:
    """Floating-point operations of a call."""
    with FlopCounter() as counted:
        call()
    return counted.total


def measure(names: tuple[str, ...], batch: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each method; the first of its steps, which allocate, are not timed."""
    steps = {name: two_steps(name, batch) for name in names}
    done = {name: work_of(each.run) for name, each in steps.items()}
    memory = {name: peak_memory(each.run) for name, each in steps.items()}
    seconds = interleaved({name: each.run for name, each in steps.items()}, rounds=rounds, advance=lambda: None)
    return [
        {
            "method": name,
            "seconds": seconds[name]["processor"].median / 2,
            "over_trades": (seconds[name]["processor"] / seconds[BASE]["processor"]).summary(),
            "demanded": steps[name].demanded / steps[BASE].demanded,
            "done": done[name] / done[BASE],
            "memory": memory[name] / memory[BASE],
            "mb": memory[name] / 2**20,
        }
        for name in names
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=list(NAMES), help="TRADES is always among them")
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/method-costs.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure((BASE, *(name for name in options.methods if name != BASE)), options.batch, options.rounds)
    for row in rows:
        over = "{median:.2f} [{low:.2f}, {high:.2f}]".format(**row["over_trades"])
        counts = "  ".join(f"{name} {row[name]:5.2f}" for name in ("demanded", "done", "memory"))
        print(f"{row['method']:16} time {over}  {counts}  {row['mb']:6.1f} MB", flush=True)
    stored = {"batch": options.batch, "rounds": options.rounds, "methods": rows, "environment": environment()}
    write_atomically(options.out, json.dumps(stored, indent=1).encode())


if __name__ == "__main__":
    main()
