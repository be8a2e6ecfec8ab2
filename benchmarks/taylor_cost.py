"""What the Taylor terms and AWP cost: time and peak memory of one training step, ratios from one interleaved run.

python benchmarks/taylor_cost.py --model preact18 --width 64 --batch 32 --rounds 7
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path

import torch

from rattle import twins
from rattle.measure import interleaved, peak_memory, ratio
from rattle.models import build, find_head
from rattle.randomness import Streams
from rattle.recipes import named
from rattle.train import step
from rattle.views import Views


def library_step(recipe_name: str, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """A whole step of a recipe: attack, terms, gradient, optimizer."""
    recipe, model = named(recipe_name), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    views = Views(model, recipe.objective.need, find_head(model))

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        step(
            views,
            x,
            y,
            attack=recipe.attack,
            noise=recipe.noise,
            objective=recipe.objective,
            awp=recipe.awp,
            shared=torch.Generator().manual_seed(0),
            private=Streams(0, torch.arange(len(x))),
        )
        optimizer.step()

    return run


def authors_step(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """The authors' algorithm, literally."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        twins.released_step(
            model,
            find_head(model),
            x,
            y,
            epsilon=8 / 255,
            step_size=2 / 255,
            steps=10,
            sigma=1e-4,
            eta=0.2,
            draws=Streams(0, torch.arange(len(x))),
            generator=torch.Generator().manual_seed(0),
        )
        optimizer.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description="time and memory of one training step")
    parser.add_argument("--model", default="preact18")
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.manual_seed(0)
    plain = build(options.model, classes=10, width=options.width)
    fast = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = torch.rand(options.batch, 3, 32, 32), torch.arange(options.batch) % 10
    x_last = x.to(memory_format=torch.channels_last)
    methods = {"order 0": "trades", "order 1": "trades-1st", "order 2": "trades-2nd", "awp order 2": "trades-awp-2nd"}
    cases = {name: library_step(f"cifar10-linf-preact18-{m}", fast, x_last, y) for name, m in methods.items()}
    cases["authors"] = authors_step(plain, x, y)
    for case in cases.values():
        case()  # so that momentum buffers exist before memory is counted
    resident = 2 * sum(p.numel() * p.element_size() for p in plain.parameters())  # weights and momentum
    memory = {name: resident + peak_memory(case) for name, case in cases.items()}
    times = interleaved(cases, rounds=options.rounds, warmup=0)
    threads = torch.get_num_threads()
    print(f"{options.model} width {options.width}, batch {options.batch}, {threads} threads, {options.rounds} rounds")
    for name in cases:
        print(f"{name:12} {times[name].median:8.3f} s {memory[name] / 2**20:9.1f} MiB")
    pairs = {
        "order 2 / order 0": ("order 2", "order 0"),
        "authors / order 2": ("authors", "order 2"),
        "awp order 2 / order 2": ("awp order 2", "order 2"),
    }
    table = {}
    for label, (above, below) in pairs.items():
        time, space = ratio(times[above], times[below]), memory[above] / memory[below]
        table[label] = {"time": time.median, "quartiles": [time.low, time.high], "memory": space}
        print(f"{label:22} time {time.median:.3f} [{time.low:.3f}, {time.high:.3f}]  memory {space:.3f}")
    if options.json:
        options.json.write_text(
            json.dumps({"settings": vars(options) | {"json": None}, "ratios": table}, default=str, indent=1)
        )


if __name__ == "__main__":
    main()
