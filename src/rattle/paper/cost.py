"""Table 6: seconds an epoch and memory of TRADES, the method, and the authors' algorithm, from single steps."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from rattle.bench import run
from rattle.bench.cases import AUTHORS, PUBLISHED, cases_of
from rattle.bench.measure import timed
from rattle.bench.setup import Setup, library_step, prepare
from rattle.paper.blocks import Block, PrintedRow, PrintedTable
from rattle.paper.scales import Scale
from rattle.paper.tables import table
from rattle.recipes.reading import parse_json
from rattle.runs.environment import environment
from rattle.runs.io import write_atomically
from rattle.runs.progress import Console

EPOCH = 50_000  # training images of CIFAR-10
OURS = ("TRADES", "TRADES 1st", "TRADES 1st+2nd")  # in the order of the table's rows
THEIRS = {0: PUBLISHED, 2: AUTHORS}  # row -> the algorithm as its authors wrote it
Measurement = dict[str, float]  # one step: seconds by the wall clock, processor by that of ratios, peak bytes
Line = tuple[str, str, tuple[float, float, float, float]]  # method, what, a value for each of KEYS
KEYS = ("seconds_an_epoch", "time_ratio", "megabytes", "memory_ratio")
NOTES = (
    "Seconds are the median step times the steps of an epoch of 50,000 images; memory is the peak of live tensors in a "
    "step. Absolute figures belong to a machine; the ratios to TRADES can be compared across machines.",
    "as released: the same algorithm written the way its authors released it, measured here too; its ratio is to "
    "TRADES as released.",
)


def estimated_seconds(scale: Scale) -> float:
    """What measuring will take, from one step on a few images."""
    few = replace(scale.cost, batch=min(8, scale.cost.batch))
    step = library_step(prepare(few), "trades")
    step()  # the first step is slower
    seconds = timed(step)["wall"] * scale.cost.batch / few.batch
    return seconds * (len(OURS) + 2 * len(THEIRS)) * (scale.rounds + 1)  # the authors' take about twice as long


def measure(scale: Scale, path: Path, console: Console) -> dict[str, Measurement]:
    """All five algorithms, interleaved; a measurement of this machine with the same settings is read from the file."""
    settings = {"setup": asdict(scale.cost), "rounds": scale.rounds, "environment": environment()}
    settings["environment"].pop("commit")
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = parse_json(path.read_text(encoding="utf-8"))
        if all(stored[key] == json.loads(json.dumps(value)) for key, value in settings.items()):
            return stored["measured"]
    setup = scale.cost
    names = (*OURS, *THEIRS.values())
    cases = {name: case for name, case in cases_of(prepare(setup), ("training",)).items() if name in names}
    seconds, memory = run.measure(f"Table 6, {setup.model}", setup, cases, rounds=scale.rounds, console=console)
    measured = {
        name: {"seconds": each["wall"].median, "processor": each[setup.ratio_clock].median, "bytes": memory[name]}
        for name, each in seconds.items()
    }
    write_atomically(path, json.dumps({**settings, "measured": measured}, indent=1).encode())
    return measured


def printed_table(scale: Scale, measured: Mapping[str, Measurement], title: str) -> PrintedTable:
    """Ours and the published algorithms measured here, then the paper's figures, with their ratios to TRADES."""
    setup, machine = scale.cost, environment()
    network = f"{setup.model} (width {setup.width})" if setup.width else setup.model
    here, there = measured_lines(measured, setup), published_lines()
    caption = f"ours: generated {setup.side}x{setup.side} images, {network}, batch {setup.batch}"
    caption += f", {machine['device']}, threads: {machine['threads']}, rounds: {scale.rounds}"
    rows = [
        {"network": name, "method": method, "what": what, **dict(zip(KEYS, values, strict=True))}
        for name, lines in ((network, here), (table(6).rows[0].architecture, there))
        for method, what, values in lines
    ]
    return PrintedTable(
        title=title,
        blocks=(block(caption, here), block(f"published (paper): {table(6).title}", there)),
        notes=NOTES,
        plain={"table": 6, "scale": scale.name, "setup": asdict(setup), "rows": rows},
    )


def measured_lines(measured: Mapping[str, Measurement], setup: Setup) -> list[Line]:
    """Each algorithm of ours, followed by the one that its authors wrote where they did."""
    lines = []
    for i, name in enumerate(OURS):
        lines.append((name, "ours", figures(measured[name], measured[OURS[0]], setup)))
        if i in THEIRS:
            lines.append((name, "as released", figures(measured[THEIRS[i]], measured[PUBLISHED], setup)))
    return lines


def published_lines() -> list[Line]:
    """The paper's figures and their ratios."""
    found = [[row.cell(column).value or math.nan for column in ("seconds", "megabytes")] for row in table(6).rows]
    first = found[0]
    return [
        (row.method, "paper, A100", (seconds, seconds / first[0], memory, memory / first[1]))
        for row, (seconds, memory) in zip(table(6).rows, found, strict=True)
    ]


def block(caption: str, lines: Sequence[Line]) -> Block:
    """Lines of one network and machine; what they are has a column where they are not all the same."""
    rows, mixed = [], len({what for _, what, _ in lines}) > 1
    for method, what, values in lines:
        texts = (f"{value:.2f}" if column % 2 else f"{value:,.0f}" for column, value in enumerate(values))
        labels = (method, what) if mixed else (method,)
        rows.append(PrintedRow(kind="ours" if mixed else "paper", labels=labels, cells=tuple(texts)))
    columns = ("s an epoch", "of TRADES", "MB", "of TRADES")
    return Block(caption=caption, labels=("Method", "")[: 1 + mixed], columns=columns, rows=tuple(rows))


def figures(one: Measurement, base: Measurement, setup: Setup) -> tuple[float, float, float, float]:
    """Seconds an epoch, their ratio to the base, megabytes, their ratio."""
    epoch = one["seconds"] * EPOCH / setup.batch
    return epoch, one["processor"] / base["processor"], one["bytes"] / 1e6, one["bytes"] / base["bytes"]
