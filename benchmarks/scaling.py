"""Weak scaling on one machine: two ranks with one thread each against one rank with two threads, in images/s.

`python benchmarks/scaling.py --rounds 3` runs both in turns, so that whatever else the machine does meets both, and
prints the images/s of each round, the ratio of the totals, and the command that ran.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPE = "digits-linf-cnn-trades-2nd"
FIXED = "--data.val-size 0 --epochs"


def rate(ranks: int, threads: int, options: argparse.Namespace) -> float:
    """Images a second, from the time of the epochs after the first (the first warms up)."""
    settings = f"--width {options.width} --batch-size {options.batch} {FIXED} {options.epochs} --threads {threads}"
    front = f"-m torch.distributed.run --standalone --nproc-per-node {ranks} -m rattle" if ranks > 1 else "-m rattle"
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, *front.split(), "train", RECIPE, *settings.split(), "--out", f"{place}/run"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        lines = [json.loads(line) for line in Path(place, "run", "timing.jsonl").read_text().splitlines()][1:]
        metrics = json.loads(Path(place, "run", "metrics.jsonl").read_text().splitlines()[0])
    return metrics["step"] * options.batch * len(lines) / sum(line["seconds"] for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 3), ("epochs", 4), ("width", 16), ("batch", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    two, one = [], []
    for _ in range(options.rounds):
        two.append(rate(2, 1, options))
        one.append(rate(1, 2, options))
    ratio = (options.rounds / sum(1 / r for r in two)) / (options.rounds / sum(1 / r for r in one))
    summary = {"two_ranks_one_thread": two, "one_rank_two_threads": one, "ratio": ratio, "load": os.getloadavg()[0]}
    print(json.dumps(summary | vars(options)))


if __name__ == "__main__":
    main()
