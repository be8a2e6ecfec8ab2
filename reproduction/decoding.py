"""Pictures a second that are read, decoded, cropped and scaled, beside what a training step takes.

    python -m reproduction.decoding [--rounds 3] [--pictures 192] [--side 375] [--crop 224]

Pictures are JPEG files of 375 to 562 pixels, made by examples/imagenet_miniature.py; decoding them costs what that of
photographs of that size does. Rates are by the clock and by processor seconds, which other work on the machine does not
change; rounds are interleaved, and the best of each line counts.
"""

from __future__ import annotations

import argparse
import resource
import runpy
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from rattle.data import Data
from rattle.data.dataset import Images
from rattle.recipes.catalog import get_recipe
from rattle.training.minibatch import train_step
from rattle.training.ranks import wrap_model
from rattle.training.state import init_state

BATCH = 32


def processor() -> float:
    """Processor seconds of this process and of those that it waited for."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def one_epoch(images: Images) -> None:
    """One epoch, as training reads it."""
    order = list(torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).split(BATCH))
    epoch = images.cropped(0, 0.08, order)
    for index in order:
        epoch[index]


def rates(lines: dict[str, Callable[[], object]], count: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Of each line the best rate by the clock, and by processor seconds."""
    best = dict.fromkeys(lines, (0.0, 0.0))
    for _ in range(rounds):
        for name, work in lines.items():
            clock, used = time.perf_counter(), processor()
            work()
            found = count / (time.perf_counter() - clock), count / (processor() - used)
            best[name] = max(best[name][0], found[0]), max(best[name][1], found[1])
    return best


def step_rate(images: Data, model: str, batch: int) -> float:
    """Images that a training step takes a processor second; the recipe's three attack steps and TRADES."""
    recipe = replace(get_recipe(f"imagenet-linf-{model}-trades"), data=images, batch_size=batch, normalise=False)
    state = init_state(recipe, images.load())
    state.train_mode()
    forward, _ = wrap_model(state)
    shown = state.data.train.to("cpu")
    used = processor()
    train_step(state, forward, forward, shown, torch.arange(batch))
    return batch / (processor() - used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=192)
    parser.add_argument("--side", type=int, default=375, help="of the shortest pictures")
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--model", default="cnn-slim", help="whose training step is timed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    make = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "imagenet_miniature.py"))["make"]
    with tempfile.TemporaryDirectory() as folder:
        path, classes = Path(folder) / "set", 32
        make(path, train=max(1, args.pictures // classes), val=1, side=args.side, classes=classes)
        data = Data(name=str(path), root=folder, crop=args.crop, val_size=0)
        sets = {workers: replace(data, workers=workers).load().train for workers in (0, 1, 2)}
        n, size = len(sets[0]), sum(p.stat().st_size for p in path.glob("train/*/*"))
        print(f"{n} pictures of {size / n / 1000:.0f} kB, crops of {args.crop}, {args.rounds} rounds")
        lines: dict[str, Callable[[], object]] = {
            f"{workers} workers": partial(one_epoch, images) for workers, images in sets.items()
        }
        for name, (clock, used) in rates(lines, n, args.rounds).items():
            print(f"{name:<24} {clock:7.1f} pictures/s, {used:7.1f} a processor second")
        rate = step_rate(replace(data, workers=0), args.model, 8)
        print(f"a step of {args.model} takes {rate:.2f} a processor second")


if __name__ == "__main__":
    main()
