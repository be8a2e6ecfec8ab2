"""A table of ours beside the paper's as text: for the terminal, Markdown, LaTeX, HTML and JSON."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rattle.paper import tables
from rattle.paper.cells import CellResult, ComparedRow
from rattle.paper.plan import Plan
from rattle.paper.protocols import Protocol
from rattle.paper.rows import Cell
from rattle.paper.scales import Scale
from rattle.report.page import p_value, render
from rattle.report.tables import title_of
from rattle.report.writers import escape_latex, escape_markdown, latex_table, markdown_table
from rattle.runs.environment import environment
from rattle.runs.io import write_atomically
from rattle.stats import LEVEL

Format = Literal["terminal", "markdown", "latex", "html", "json"]
Kind = Literal["ours", "difference", "paper"]
OURS: dict[Protocol, str] = {"honest": "ours", "paper": "ours, paper's protocol"}
PLACES = {"%": 2, "distance": 4}  # decimals in the paper
TITLES = {"adbd": "ADBD", "rays": "RayS"}
READING = (
    "Accuracy in %: mean ± standard deviation over seeds [95 % interval, over seeds where there are several, else over "
    "images]. A difference is to the 0th-order row of the same base, with the p-value of its paired test; * means "
    "below 0.05 after Holm's adjustment for all tests of the protocol in this table.",
    "ours: the checkpoint was chosen on held-out validation images. ours, paper's protocol: the highest over the "
    "checkpoints of Appendix B, chosen on the test images (clean: of the one best under PGD-20; AutoAttack and RayS "
    "were run on that one alone); it flatters, as the paper's does.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRow:
    """One printed line of the group of lines that a row of the paper becomes."""

    kind: Kind
    labels: tuple[str, ...]  # the first one is empty but in the line that begins a group
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTable:
    """A table as text: columns of labels on the left, columns of numbers on the right."""

    title: str
    labels: tuple[str, ...]  # their headings
    columns: tuple[str, ...]  # their headings
    rows: tuple[PrintedRow, ...]
    notes: tuple[str, ...]
    plain: dict[str, Any]  # all numbers, for JSON

    @property
    def head(self) -> list[str]:
        return [*self.labels, *self.columns]

    @property
    def texts(self) -> list[list[str]]:
        return [[*row.labels, *row.cells] for row in self.rows]


def decimals(cell: Cell, ours: CellResult) -> int:
    """As the paper prints it; fewer where few images decide."""
    return 1 if cell.unit == "%" and ours.images < 1000 else PLACES[cell.unit]


def shown(cell: Cell, ours: CellResult) -> str:
    """Ours in a cell; a run that diverged never shows a number."""
    if ours.state:
        return ours.state
    places = decimals(cell, ours)
    spread = "" if math.isnan(ours.deviation) else f" ± {ours.deviation:.{places}f}"
    between = f" [{ours.interval.low:.{places}f}, {ours.interval.high:.{places}f}]" if ours.interval else ""
    return f"{ours.mean:.{places}f}{spread}{between}"


def shown_difference(cell: Cell, ours: CellResult) -> str:
    if ours.difference is None:
        return "-"
    unit = 100 if cell.unit == "%" else 1
    star = "*" if ours.p_adjusted is not None and ours.p_adjusted < 1 - LEVEL else ""
    return f"{unit * ours.difference.mean:+.{decimals(cell, ours)}f}{star} (p {p_value(ours.difference.p)})"


def groups(line: ComparedRow) -> Iterator[tuple[Kind, str, str, list[str]]]:
    """(kind, what, seeds, cells) of the lines of one row."""
    cells = line.row.cells
    for protocol, ours in line.ours.items():
        seeds = str(max(len(ours[cell.column].seeds) for cell in cells))
        yield "ours", OURS[protocol], seeds, [shown(cell, ours[cell.column]) for cell in cells]
        if line.baseline:
            yield "difference", "difference", "", [shown_difference(cell, ours[cell.column]) for cell in cells]
    yield "paper", "paper" if line.key else "paper, quoted", "", [cell.printed for cell in cells]
    changes = {cell: line.published_difference(cell.column) for cell in cells}
    if set(changes.values()) != {None}:
        texts = ["-" if change is None else f"{change:+.{PLACES[cell.unit]}f}" for cell, change in changes.items()]
        yield "difference", "difference", "", texts


def printed_table(plan: Plan, title: str, lines: Sequence[ComparedRow]) -> PrintedTable:
    """The table of a plan."""
    rows, columns = [], {column: heading(column, plan.scale) for column in tables.table(plan.number).columns}
    for line in lines:
        for i, (kind, what, seeds, cells) in enumerate(groups(line)):
            names = (line.row.dataset, line.row.architecture, line.row.method) if i == 0 else ("", "", "")
            rows.append(PrintedRow(kind=kind, labels=(*names, what, seeds), cells=tuple(cells)))
    notes = [f"{line.row.method}: {line.row.note}." for line in lines if line.row.note]
    numbers = {"table": plan.number, "scale": plan.scale.name, "columns": columns}
    return PrintedTable(
        title=title,
        labels=("Data", "Network", "Method", "", "Seeds"),
        columns=tuple(columns.values()),
        rows=tuple(rows),
        notes=(*READING, *plan.notes, *dict.fromkeys(notes)),
        plain=numbers | {"rows": [plain_row(line) for line in lines]},
    )


def heading(column: str, scale: Scale) -> str:
    """The title of a column, and what ours is measured with where that is not what the title says."""
    title, run = TITLES.get(column) or title_of(column), scale.name_of(column)
    return title if run == column else f"{title} (ours: {run})"


def plain_row(line: ComparedRow) -> dict[str, Any]:
    """A row and everything measured for it."""
    row = line.row
    cells = {
        cell.column: {
            "published": cell.value,
            "published_difference": line.published_difference(cell.column),
            "unit": cell.unit,
            "ours": {protocol: plain_result(ours[cell.column]) for protocol, ours in line.ours.items()},
        }
        for cell in row.cells
    }
    names = {"method": row.method, "dataset": row.dataset, "network": row.architecture, "norm": row.norm}
    return names | {"recipe": row.recipe, "run": line.key or None, "cells": cells}


def plain_result(ours: CellResult) -> dict[str, Any]:
    """Its fields, with null for what JSON cannot hold; of a cell without a number only the reason."""
    if ours.state:
        return {"state": ours.state}
    plain = finite(asdict(replace(ours, sample=None)))
    del plain["state"], plain["sample"]
    return plain | {"interval": [ours.interval.low, ours.interval.high] if ours.interval else None}


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown(table: PrintedTable) -> str:
    text = markdown_table(table.head, table.texts, left=len(table.labels))
    notes = "".join(f"- {escape_markdown(note)}\n" for note in table.notes)
    return f"# {escape_markdown(table.title)}\n\n{text}\n{notes}"


def latex(table: PrintedTable) -> str:
    text = latex_table(table.head, table.texts, left=len(table.labels), comments=[escape_latex(table.title)])
    return text + "".join(f"% {escape_latex(note)}\n" for note in table.notes)


def html(table: PrintedTable) -> str:
    """One page that fetches nothing and runs nothing."""
    return render("paper.html", {"table": table})


def as_json(table: PrintedTable) -> str:
    plain = {"title": table.title, **table.plain, "notes": list(table.notes), "environment": environment()}
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


WRITERS = {"markdown": (markdown, "md"), "latex": (latex, "tex"), "html": (html, "html"), "json": (as_json, "json")}


def write(table: PrintedTable, out: Path, stem: str) -> list[Path]:
    """Every format under OUT."""
    paths = []
    for make, ending in WRITERS.values():
        paths.append(out / f"{stem}.{ending}")
        write_atomically(paths[-1], make(table).encode())
    return paths
