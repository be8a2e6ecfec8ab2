"""Images a second through augmentation and to float, beside images a second through an adversarial training step.

    python -m reproduction.augmentation [--threads 1] [--seconds 2]

The step is the cheapest one that matters: PGD-10 on a small CNN, then one forward and backward to train on. A real
network is dearer, so the share of time that augmentation takes there is smaller still.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.data import Augment
from rattle.inputs import to_float
from rattle.models.registry import create_model
from rattle.randomness import ImageStreams

BATCH, CHANNELS, SIDE, CLASSES = 128, 3, 32, 10


def images_a_second(work: Callable[[], object], seconds: float) -> float:
    """The best of the runs that fit: what disturbs a run only ever makes it slower."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return BATCH / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    stored = torch.randint(0, 256, (10_000, CHANNELS, SIDE, SIDE), dtype=torch.uint8)
    index = torch.randperm(len(stored))[:BATCH]
    y = torch.randint(CLASSES, (BATCH,))
    model = create_model("cnn", classes=CLASSES, channels=CHANNELS)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, attack = to_float(stored[index]), PGD(steps=10)

    def step() -> None:
        x_adv = attack(model, x, y, generator=ImageStreams(0, index))
        optimizer.zero_grad()
        F.cross_entropy(model(x_adv), y).backward()
        optimizer.step()

    lines = {
        f"crop, flip, to float (batches of {BATCH}, {CHANNELS}x{SIDE}x{SIDE})": Augment(),
        "crop, flip, cutout 8, to float": Augment(cutout=8),
    }
    trained = images_a_second(step, max(arguments.seconds, 5.0))
    print(f"{trained:12,.0f} images/s  step: PGD-10 and an update of a small CNN, {arguments.threads} thread(s)")
    for name, augment in lines.items():

        def prepare(augment: Augment = augment) -> torch.Tensor:
            return to_float(augment(stored[index], ImageStreams(0, index)))

        rate = images_a_second(prepare, arguments.seconds)
        print(f"{rate:12,.0f} images/s  {name}: {rate / trained:,.0f} times the step, {trained / rate:.2%} of its time")


if __name__ == "__main__":
    main()
