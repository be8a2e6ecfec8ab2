"""What the Taylor terms cost: a training step of every reading over one of TRADES, interleaved, in processor seconds.

    python -m reproduction.taylor_cost [--model preact18] [--width 16] [--batch 32] [--rounds 10] [--out FILE.json]

`reproduction.bench --parts training` measures `head` beside the authors' own way, AWP, and the convolutions alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import reproduction.readings  # noqa: F401  (registers modes of the Taylor terms)
from rattle.objectives import Taylor, Trades
from rattle.weights import Noise
from reproduction.bench.measure import interleaved
from reproduction.bench.setup import Setup, library_step, prepare


def reading(mode: Any, **settings: Any) -> Trades:
    return Trades(taylor=Taylor(order=2, mode=mode, **settings))


FILTERS = Noise(scale="filter")
READINGS: dict[str, dict[str, Any]] = {
    "TRADES": {"objective": Trades(), "noise": Noise(sigma=0)},
    "u in the inner step only": {"objective": Trades()},
    "u in proportion to filters, inner step only": {"objective": Trades(), "noise": FILTERS},
    "head": {"objective": reading("head")},
    "head, without u": {"objective": reading("head"), "noise": Noise(sigma=0)},
    "head, second derivative": {"objective": reading("head-derivative")},
    "smoothing": {"objective": reading("smoothing")},
    "head-noise": {"objective": reading("head-noise")},
    "exact, 1 draw": {"objective": reading("exact")},
    "exact, 1 pair": {"objective": reading("exact-pairs")},
    "trace, 1 draw": {"objective": reading("trace")},
    "sampled, 1 draw": {"objective": reading("sampled")},
    "sampled, 1 pair": {"objective": reading("sampled-pairs")},
    "sampled, 1 draw, half the loss at w": {"objective": reading("mixture")},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="preact18")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--readings", nargs="*", default=list(READINGS), help="TRADES is always among them")
    parser.add_argument("--out", type=Path, help="write the rounds as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    subject = prepare(Setup(model=options.model, width=options.width, batch=options.batch))
    names = dict.fromkeys(["TRADES", *options.readings])
    steps = {name: library_step(subject, "trades-2nd", **READINGS[name]) for name in names}
    for run in steps.values():
        run()  # momentum buffers and caches exist from here on
    seconds = interleaved(steps, rounds=options.rounds, advance=lambda: None)
    print(f"{options.model}, width {options.width}, batch {options.batch}, {options.rounds} rounds, one thread")
    base = seconds["TRADES"]["processor"]
    for name, timing in seconds.items():
        print(f"{name:45} {timing['processor'].median:8.3f} s   {timing['processor'] / base} of TRADES")
    if options.out:
        plain = {name: timing["processor"].values for name, timing in seconds.items()}
        settings = {name: value for name, value in vars(options).items() if name != "out"}
        options.out.write_text(json.dumps(settings | {"seconds": plain}))


if __name__ == "__main__":
    main()
