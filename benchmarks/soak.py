"""Soak: kill -9 training and evaluation at random moments, resume, and compare with what was never stopped.

`python benchmarks/soak.py --kills 100` prints how often a process was killed, how often a later one went on, and how
many runs and evaluations ended bit for bit as the uninterrupted ones (timing.jsonl and seconds are not compared).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import torch
import torch.utils.tensorboard  # before forking: the children need not import it again

from rattle import cli
from rattle.data.registry import Data
from rattle.runs.checkpoint import digest, read
from rattle.runs.paths import Run

SIZES = "--width 4 --data.train-size 128 --data.val-size 30 --batch-size 32 --threads 1 --epochs 2"
RECIPE = "digits-linf-cnn-trades-awp-2nd --awp.warmup 1 --attack.steps 1 --val-attack.steps 1"
KINDS = {"ema": "--average.kind EMA", "swa": "--average.kind SWA --average.start 0", "clock": "--save-minutes 0"}


def start(args: list[str]) -> int:
    """A process of its own that runs one command; forked, so that it starts at once."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        said = os.open("said.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = cli.main(args)
    finally:
        os._exit(code)


def finish(args: list[str]) -> float:
    """Run to the end; the seconds it took."""
    begun = time.monotonic()
    _, status = os.waitpid(start(args), 0)
    assert status == 0, f"{' '.join(args)} failed: {Path('said.log').read_text()[-500:]}"
    return time.monotonic() - begun


def killed(args: list[str], seconds: float) -> bool:
    """Start and kill; False when it had ended by then."""
    pid = start(args)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def trained(folder: Path) -> object:
    """A run's content: lines, weights, averages, optimizer, progress."""
    run = Run(folder)
    states = [(saved.progress, digest(saved.tensors, {})) for saved in map(read, map(run.checkpoint, ("best", "last")))]
    return run.metrics.read_bytes(), states


def evaluated(folder: Path) -> object:
    """An evaluation's content: everything but seconds."""

    def timeless(value: object) -> object:
        return {k: timeless(v) for k, v in value.items() if k != "seconds"} if isinstance(value, dict) else value

    return {path.name: timeless(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))}


def episode(args: list[str], seconds: float, moments: random.Random, most: int) -> tuple[int, int]:
    """Kill up to `most` times, then let it finish: (kills, times it went on)."""
    kills = 0
    while kills < most and killed(args, moments.uniform(0, seconds)):
        kills += 1
    finish(args)
    return kills, kills


def soak(wanted: int, moments: random.Random, place: Path) -> dict[str, int]:
    names = ("killed", "killed_training", "killed_evaluation", "resumed", "episodes", "identical")
    count: dict[str, int] = {name: 0 for name in names}  # noqa: C420 (its type)
    cases: list[tuple[str, Callable[[Path], list[str]], Callable[[Path], object], object, float]] = []
    for name, kind in KINDS.items():

        def training(out: Path, kind: str = kind) -> list[str]:
            return ["train", *f"{RECIPE} {SIZES} {kind}".split(), "--out", str(out), "--resume"]

        seconds = finish(training(place / name))
        cases.append(("training", training, trained, trained(place / name), seconds))

    def evaluating(out: Path) -> list[str]:
        attacks = ["--attacks", "pgd10", "apgd-ce", "--n", "120", "--batch-size", "10"]
        return ["evaluate", str(place / "ema"), *attacks, "--out", str(out)]

    seconds = finish(evaluating(place / "results"))
    cases.append(("evaluation", evaluating, evaluated, evaluated(place / "results"), seconds))
    while count["killed"] < wanted:
        what, command, content, whole, seconds = cases[count["episodes"] % len(cases)]
        out = place / f"{what}{count['episodes']}"
        kills, resumed = episode(command(out), seconds, moments, most=5)
        count["episodes"] += 1
        count["killed"] += kills
        count[f"killed_{what}"] += kills
        count["resumed"] += resumed
        count["identical"] += content(out) == whole
        print(json.dumps(count), file=sys.stderr, flush=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Data(name="digits").load()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place, chdir(place):
        count = soak(options.kills, random.Random(options.seed), Path(place))
    print(json.dumps({**count, "seed": options.seed, "seconds": round(time.monotonic() - begun)}))
    sys.exit(count["identical"] != count["episodes"])


if __name__ == "__main__":
    main()
