"""How fast training steps and attacks are on this machine, beside plain references and the machine's limit.

python -m reproduction.bench --quick                        # a slim network: under a minute
python -m reproduction.bench --batch 128 --rounds 7         # the network of the paper
python -m reproduction.bench --growth --json bench.json     # also time and memory against batch, K, classes, width
python -m reproduction.bench --trace step.json --quick      # a chrome trace of one step
python -m reproduction.bench --against passes --model cnn   # counts of passes instead of seconds
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from rattle.cli.console import Console, print_table, say
from rattle.errors import RattleError
from rattle.runs.io import write_atomically
from reproduction.bench.cases import QUERIES, STEPS
from reproduction.bench.passes import PASS_COLUMNS, count_passes, pass_rows, passes_to_plain
from reproduction.bench.report import chart, growth_chart, ratio_rows, rows, to_plain
from reproduction.bench.run import GROUPS, bench, growth, trace
from reproduction.bench.setup import Setup


@dataclass(frozen=True)
class Options:
    """Measure images a second and peak memory of training steps, PGD-20 and AutoAttack's components, interleaved with
    plain references (the authors' algorithm, TRADES as published, a textbook PGD, pyautoattack, torchattacks when
    installed) and with the convolutions alone, the machine's own limit. With --against passes count instead what
    AutoAttack's components ask of the network: exact, and alike on every machine."""

    model: str = "preact18"  # the network's name
    width: int | None = None  # channels of its first stage; the published width when not given
    batch: int = 32  # images in a batch
    against: Literal["time", "passes"] = "time"  # passes: forward and backward passes, in images, beside pyautoattack's
    rounds: int | None = None  # times every case runs; 5 when not given, 2 with --quick
    steps: int = 10  # K of the inner maximisation
    parts: tuple[Literal["training", "evaluation", "autoattack"], ...] = GROUPS  # what to measure
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: forward passes under autocast
    compile: bool = False  # torch.compile the network
    channels_last: bool = True  # memory layout of the library's side; the references keep torch's own
    threads: int | None = None  # CPU threads; torch's own choice when not given
    clock: Literal["auto", "wall", "processor"] = "auto"  # of the ratios: auto is CPU seconds on a CPU, else wall
    quick: bool = False  # a slim network (width 8), under a minute
    growth: bool = False  # also measure time and memory against batch, K, classes and width
    trace: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""  # write a chrome trace of one step and stop
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""  # write everything measured as JSON
    chart: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""  # draw a bar chart; --growth adds a second, FILE-growth


def main(args: list[str]) -> None:
    options = tyro.cli(Options, args=args, prog="python -m reproduction.bench")
    setup = Setup(
        model=options.model,
        width=options.width or (8 if options.quick else None),
        batch=options.batch,
        steps=options.steps,
        device=options.device,
        precision=options.precision,
        compile=options.compile,
        channels_last=options.channels_last,
        clock=options.clock,
    )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.trace:
        trace(setup, Path(options.trace))
        say(f"trace: {options.trace}; open it in chrome://tracing or ui.perfetto.dev")
    elif options.against == "passes":
        print_passes(setup, options.json)
    else:
        print_times(setup, options)


def print_times(setup: Setup, options: Options) -> None:
    """The tables of seconds and memory, and the files that the options name."""
    rounds = options.rounds
    if rounds is None:
        rounds = 2 if options.quick else 5
    console = Console()
    result = bench(setup, rounds=rounds, groups=options.parts, console=console)
    curves = []
    if options.growth:
        slim = replace(setup, width=setup.width or 16)
        curves = growth(slim, rounds=min(rounds, 3), console=console)
    title = f"{setup.model} width {setup.width or 'as published'}, batch {setup.batch}, K {setup.steps}, "
    title += f"{rounds} rounds, {torch.get_num_threads()} threads"
    columns = ["case", "wall seconds (quartiles)", "images/s", "peak MiB", "GFLOP an image", "of the limit"]
    print_table(columns, rows(result), title=title)
    print_table(
        ["ratio", f"median (quartiles), {setup.ratio_clock} seconds", "target at full width"], ratio_rows(result)
    )
    if curves:
        cells = [[c.title, str(c.values), f"{c.time_exponent:.2f}", f"{c.memory_exponent:.2f}"] for c in curves]
        print_table(["a 1st+2nd step against", "values", "time exponent", "memory exponent"], cells)
    if options.json:
        write_json(options.json, to_plain(result, curves))
    if options.chart:
        path = Path(options.chart)
        chart(result, path)
        say(f"chart: {path}")
        if curves:
            growth_path = path.with_stem(f"{path.stem}-growth")
            growth_chart(curves, growth_path)
            say(f"growth: {growth_path}")


def print_passes(setup: Setup, path: str) -> None:
    """The table of --against passes, written to `path` too where one is given."""
    found = count_passes(setup, Console())
    title = f"passes in images: {setup.model} width {setup.width or 'as published'}, {setup.batch} images, "
    print_table(PASS_COLUMNS, pass_rows(found, setup.batch), title=f"{title}{STEPS} steps, {QUERIES} queries")
    if path:
        write_json(path, passes_to_plain(setup, found))


def write_json(path: str, plain: dict[str, Any]) -> None:
    write_atomically(Path(path), (json.dumps(plain, indent=1) + "\n").encode())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RattleError as reason:
        sys.exit(f"{reason}")
