"""`make fuzz N=10000`: cases in a child process with a limit of memory; what kills or stalls it is counted too."""

import argparse
import collections
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

ADDRESS_SPACE = 12 * 2**30  # bytes; torch reserves some of them before it does anything
STALL = 120  # seconds without a line, after which a child is stopped: a hang inside torch, which no alarm reaches


def child(kinds: list[str], start: int, end: int) -> None:
    """Run cases and print a line for each."""
    import torch

    from fuzz.cases import run_case

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for i in range(start, end):
        kind, number = kinds[i % len(kinds)], i // len(kinds)
        print(f"begin {i}", flush=True)
        outcome, why = run_case(kind, number)
        print(f"end {i} {outcome} {why.encode('unicode_escape').decode()}", flush=True)


def parent(kinds: list[str], n: int, start: int) -> int:
    """Run n cases in children, one after the other as they die; print what was found and counts by kind."""
    counts: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in kinds}
    at, begun = start, time.monotonic()
    while at < start + n:
        words = [sys.executable, "-m", "fuzz", "--child", str(at), str(start + n), *kinds]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while line := next_line(process.stdout, process):
                word, number, *rest = line.rstrip("\n").split(" ", 3)
                at = int(number) + (word == "end")
                if word == "end":
                    note(counts, kinds, int(number), *rest)
            code = process.wait()
        if code and at < start + n:
            note(counts, kinds, at, "hang" if code == -9 else "crash", f"the process ended with {code}")
            at += 1
    bad = 0
    for kind, found in counts.items():
        print(f"{kind:<12} " + "  ".join(f"{name} {count}" for name, count in sorted(found.items())))
        bad += sum(count for name, count in found.items() if name not in ("done", "refused"))
    print(f"{n} cases in {time.monotonic() - begun:.0f} s: {bad} that should not be")
    return int(bad > 0)


def next_line(lines: Iterator[str], process: subprocess.Popen[str]) -> str:
    """The next line of a child, "" after the last; it is killed when none comes for STALL seconds."""
    timer = threading.Timer(STALL, process.kill)
    timer.start()
    try:
        return next(lines, "")
    finally:
        timer.cancel()


def note(counts: dict, kinds: list[str], case: int, outcome: str, why: str = "") -> None:
    kind = kinds[case % len(kinds)]
    counts[kind][outcome] += 1
    if outcome not in ("done", "refused"):
        print(f"{kind} {case // len(kinds)}: {outcome}\n    " + why.replace("\\n", "\n    "), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--child", nargs=2, type=int)
    parser.add_argument("kinds", nargs="*")
    options = parser.parse_args()
    every = options.kinds or [
        "recipes",
        "checkpoints",
        "images",
        "formats",
        "weights",
        "results",
        "moved",
        "commands",
        "python",
    ]
    if options.child:
        child(every, *options.child)
    else:
        sys.exit(parent(every, options.n, options.start))
