"""`make fuzz N=10000`: cases in a child process with a limit of memory; what kills or stalls it is counted too."""

import argparse
import collections
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch

from fuzz.cases import GOOD, KINDS, run_case

ADDRESS_SPACE = 12 * 2**30  # bytes; torch reserves some of them before it does anything
STALL = 120  # seconds, after which a child is killed: a hang inside torch, which no alarm reaches


def limit() -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def new_child() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"), limit)


def main(kinds: list[str], n: int, start: int) -> int:
    """Run n cases, in another child when one dies; print what was found and counts by kind."""
    counts = {kind: collections.Counter[str]() for kind in kinds}
    child, begun = new_child(), time.monotonic()
    for i in range(start, start + n):
        kind, number = kinds[i % len(kinds)], i // len(kinds)
        try:
            outcome, why = child.submit(run_case, kind, number).result(STALL)
        except (TimeoutError, BrokenProcessPool) as reason:
            outcome, why = "hang" if isinstance(reason, TimeoutError) else "crash", ""
            for process in (child._processes or {}).values():
                process.kill()
            child = new_child()
        counts[kind][outcome] += 1
        if outcome not in GOOD:
            print(f"{kind} {number}: {outcome}\n    " + why.replace("\n", "\n    "), flush=True)
    for kind, found in counts.items():
        print(f"{kind:<12} " + "  ".join(f"{name} {count}" for name, count in sorted(found.items())))
    bad = sum(count for found in counts.values() for name, count in found.items() if name not in GOOD)
    print(f"{n} cases in {time.monotonic() - begun:.0f} s: {bad} that should not be")
    return int(bad > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    sys.exit(main(options.kinds, options.n, options.start))
