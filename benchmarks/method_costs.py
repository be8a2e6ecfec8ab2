"""What a training step of each method costs over a step of TRADES: processor time, interleaved, and memory.

    python benchmarks/method_costs.py --rounds 10

A step near the end of a run (averages have begun, FAT attacks longest) on the digits, from the weights of the zoo's
TRADES network, one thread: random weights would flatter methods whose attack ends early. Two steps are timed together,
because GAT alternates. Memory is what the process grows by in three steps, in a process of its own for each method.
Teachers that are trained first are not part of a step. Writes results/method-costs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import torch

from rattle.data import on_device
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import get_recipe
from rattle.runs.environment import environment
from rattle.runs.io import write_atomically
from rattle.training.loop import follow, train_step
from rattle.training.ranks import wrap_model
from rattle.training.state import init_state

VARIANTS = ("at-1st", "at-2nd", "trades-1st", "trades-2nd", "trades-awp", "trades-awp-2nd", "trades-sam", "mart-2nd")
NAMES = (*(name for name in METHODS if name != "sota"), *VARIANTS)  # sota needs generated images


def stepper(name: str, batch: int) -> Callable[[], None]:
    """Two training steps of a method; the weights stay as they are."""
    recipe = get_recipe(f"digits-linf-cnn-{name}")
    recipe = replace(recipe, init="zoo:digits-linf-cnn-trades", threads=1, batch_size=batch)
    data = recipe.data.load()
    state = init_state(recipe, data)
    state.progress.epoch = recipe.epochs - 1
    follow(state, begins=True)
    state.train_mode()
    forward, ddp_forward = wrap_model(state.model, recipe, teachers=state.teachers, average=state.average)
    images, index = on_device(data.train, state.device), torch.arange(batch)

    def two_steps() -> None:
        for _ in range(2):
            train_step(state, forward, ddp_forward, images, index)
            state.progress.step += 1
            for network in (state.model, *state.along.values()):
                network.zero_grad()

    return two_steps


def processor_seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def grown_kb(name: str, batch: int) -> int:
    """By how much three times two steps raise the most memory that this process ever had."""
    step = stepper(name, batch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def memory_mb(name: str, batch: int) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--grown", name, "--batch", str(batch)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ}).stdout
    return int(found.split()[-1]) / 1024


def measure(batch: int, rounds: int) -> list[dict[str, object]]:
    steps = {name: stepper(name, batch) for name in NAMES}
    for step in steps.values():
        step()  # the first one allocates
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for _, name in product(range(rounds), NAMES):
        seconds[name].append(processor_seconds(steps[name]))
    rows = []
    for name, found in seconds.items():
        ratios = sorted(a / b for a, b in zip(found, seconds["trades"], strict=True))
        spread = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        rows.append({"method": name, "over_trades": median(ratios), "quartiles": spread, "mb": memory_mb(name, batch)})
        print(
            f"{name:18} {median(ratios):5.2f}  [{spread[0]:.2f}, {spread[1]:.2f}]  {rows[-1]['mb']:6.1f} MB", flush=True
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/method-costs.json"))
    parser.add_argument("--grown", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.grown:
        print(grown_kb(options.grown, options.batch))
        return
    rows = measure(options.batch, options.rounds)
    stored = {"batch": options.batch, "rounds": options.rounds, "methods": rows, "environment": environment()}
    write_atomically(options.out, json.dumps(stored, indent=1).encode())


if __name__ == "__main__":
    main()
