"""Windows around Square's patches against whole forward passes: time, and the constants of `Plan.pays` that fit it.

    OMP_NUM_THREADS=1 python -m reproduction.patches --out patches.json

Networks have random weights: time does not depend on them. --networks FILE.py:FUNCTION measures one of your own.
"""

from __future__ import annotations

import argparse
import json
import math
import runpy
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rattle.attacks.base import attack_mode
from rattle.attacks.patches import Answer, Plan
from rattle.attacks.reach import Layers
from rattle.attacks.rows import FlatModel
from rattle.models.registry import create_model
from rattle.runs.environment import environment

SIDES = (7, 5, 4, 3)  # of 32 x 32 images, from query 500, 1000, 2000 and 4000 on


def network(name: str) -> nn.Module:
    """MODEL, MODEL-wWIDTH, or what a function of a file returns."""
    if ":" in name:
        file, _, function = name.rpartition(":")
        return runpy.run_path(file)[function]().eval()
    model, _, width = name.partition("-w")
    options: dict[str, Any] = {"width": int(width)} if width else {}
    return create_model(model, classes=10, **options).eval()


@torch.no_grad()
def measure(model: nn.Module, images: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds of both ways for every side, and what the estimate is made of."""
    rows, found = torch.arange(images), []
    x = torch.rand(images, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with attack_mode(model):
        asked = FlatModel(model, x).model
        layers = Layers(asked, x[:2])
        work = {node: layers.multiplications(node) for node in layers.nodes}
        for side in SIDES:
            plan = Plan(layers, side)
            if not plan.windows:
                continue
            known, seconds = plan.store(x), tuple[list[float], list[float]](([], []))
            for _ in range(rounds):
                corner, patch = torch.randint(0, 32 - side, (images, 2)), torch.rand(images, 3, side, side)
                begin = time.process_time()
                asked(x)
                middle = time.process_time()
                Answer(plan, known, rows, corner, patch).accept(torch.arange(images) % 20 == 0)
                seconds[0].append(middle - begin)
                seconds[1].append(time.process_time() - middle)
            whole, windows = (statistics.median(times) for times in seconds)
            share = {node: math.prod(s.size / s.length for s in window) for node, window in plan.windows.items()}
            found.append(
                {"side": side, "images": images, "whole": whole, "windows": windows, "total": sum(work.values())}
                | {"replaced": sum(work[n] for n in share), "inside": sum(work[n] * share[n] for n in share)}
                | {"moved": plan.moved(), "calls": plan.calls(), "pays": plan.pays(images)}
            )
    return found


def constants(measured: list[dict[str, Any]]) -> list[float]:
    """IN_A_WINDOW, MOVED and CALL by least squares of the share of a pass that is saved."""
    columns = [[m["inside"], m["moved"], m["calls"] / m["images"]] for m in measured]
    saved = [1 - m["windows"] / m["whole"] - m["replaced"] / m["total"] for m in measured]
    matrix = -np.array(columns) / np.array([[m["total"]] for m in measured])
    return np.linalg.lstsq(matrix, np.array(saved), rcond=None)[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ["cnn", "cnn-slim", "cnn-strided", "preact18-w16"]
    parser.add_argument("--networks", nargs="+", default=default)
    parser.add_argument("--images", nargs="+", type=int, default=[20, 60, 150])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    results: dict[str, list[dict[str, Any]]] = {}
    for name in options.networks:
        results[name] = [m for images in options.images for m in measure(network(name), images, options.rounds)]
        for images in options.images:
            line = [f"{m['side']}: {m['windows'] / m['whole']:.2f}" for m in results[name] if m["images"] == images]
            print(f"{name}, {images} images, windows over whole passes by side: {', '.join(line)}", flush=True)
    fitted = constants([m for measured in results.values() for m in measured])
    print("IN_A_WINDOW, MOVED, CALL = {:.2f}, {:.0f}, {:.1e}".format(*fitted))
    if options.out:
        options.out.write_text(json.dumps({"results": results, "constants": fitted, "environment": environment()}))


if __name__ == "__main__":
    main()
