"""Weak scaling on one machine: two ranks with one thread each against one rank with two threads, in images/s.

`python -m reproduction.scaling --rounds 7` runs both in turns, so that whatever else the machine does meets both, and
prints the images/s of every epoch but the first of each run, and the ratio of their medians, with that of the fastest
tenths: other work on the machine makes epochs slow, and none makes them fast.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPE = "digits-linf-cnn-trades-2nd"
FIXED = "--data.val-size 0 --epochs"


def rates(ranks: int, threads: int, options: argparse.Namespace) -> list[float]:
    """Images a second of the epochs after the first, which warms up."""
    settings = f"--width {options.width} --batch-size {options.batch} {FIXED} {options.epochs} --threads {threads}"
    front = f"-m torch.distributed.run --standalone --nproc-per-node {ranks} -m rattle" if ranks > 1 else "-m rattle"
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, *front.split(), "train", RECIPE, *settings.split(), "--out", f"{place}/run"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        lines = [json.loads(line) for line in Path(place, "run", "timing.jsonl").read_text().splitlines()][1:]
        metrics = json.loads(Path(place, "run", "metrics.jsonl").read_text().splitlines()[0])
    return [round(metrics["step"] * options.batch / line["seconds"], 1) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 7), ("epochs", 12), ("width", 16), ("batch", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    two, one = [], []
    for _ in range(options.rounds):
        two += rates(2, 1, options)
        one += rates(1, 2, options)
    fast = [statistics.quantiles(found, n=10)[-1] for found in (two, one)]
    ratios = {"ratio": statistics.median(two) / statistics.median(one), "ratio_of_fastest_tenths": fast[0] / fast[1]}
    print(json.dumps({"two_ranks_one_thread": two, "one_rank_two_threads": one, **ratios, **vars(options)}))


if __name__ == "__main__":
    main()
