"""A table of ours and the paper's in Markdown, LaTeX, HTML and JSON."""

import json
import math
from dataclasses import asdict
from pathlib import Path

from rattle.paper.blocks import (
    UNITS,
    PrintedTable,
    data_of,
    heading,
    method_text,
    network_of,
    own_blocks,
    published_block,
)
from rattle.paper.cells import ResultsByProtocol
from rattle.paper.plan import Plan, PlannedRow
from rattle.paper.protocols import Ours
from rattle.report.page import for_json, render
from rattle.report.writers import escape_latex, escape_markdown, latex_table, markdown_table
from rattle.runs.io import Plain, write_atomically
from rattle.runs.source import environment

READING = (
    "Row: the row of the published block that a run of ours stands for; there, Ours is the paper's method. Accuracy in "
    "%: mean ± std over seeds; 95 %: the interval, over seeds where there are several, else over "
    "images. A difference is to the 0th-order run of the same base, with the p-value of its paired test; * means below "
    "0.05 after Holm's adjustment for all tests of the protocol in this table. The published block has it in brackets.",
    "validation: the checkpoint was chosen on held-out validation images. test images: the paper's protocol, the "
    "highest over the checkpoints of Appendix B, chosen on the test images (clean: of the one best under PGD-20; "
    "AutoAttack and RayS were run on that one alone); it flatters, as the paper's does.",
)


def printed_table(plan: Plan, title: str, results: ResultsByProtocol) -> PrintedTable:
    """The table of a plan."""
    rows = [entry.row for entry in plan.entries]
    notes = [f"{row.method}: {row.note}." for row in rows if row.note]
    columns = {cell.column: {"published": heading(cell), "ours": heading(cell, plan.scale)} for cell in rows[0].cells}
    plain_rows = [plain_row(plan, entry, results) for entry in plan.entries]
    return PrintedTable(
        title=title,
        blocks=(*own_blocks(plan, results), published_block(plan)),
        notes=(*READING, *plan.notes, *dict.fromkeys(notes)),
        plain={"table": plan.number, "scale": plan.scale.name, "columns": columns, "rows": plain_rows},
    )


def plain_row(plan: Plan, entry: PlannedRow, results: ResultsByProtocol) -> Plain:
    """A row and everything measured for it."""
    row = entry.row
    cells = {}
    for cell in row.cells:
        ours = {}
        for protocol, by_key in results.items():
            if entry.key:
                ours[protocol] = plain_result(by_key[entry.key][cell.column], UNITS[cell.unit])
        cells[cell.column] = {
            "published": cell.value,
            "published_under": cell.published_under or cell.attack,
            "published_difference": plan.published_difference(entry, cell),
            "unit": cell.unit,
            "ours": ours,
        }
    published = {"method": row.method, "data": row.dataset, "network": row.architecture, "recipe": row.recipe}
    ours = None
    if recipe := entry.recipe:
        ours = {
            "method": method_text(recipe, row),
            "data": data_of(recipe),
            "network": network_of(recipe),
            "recipe": recipe.name,
        }
    return {"norm": row.norm, "published": published, "ours": ours, "run": entry.key or None, "cells": cells}


def plain_result(ours: Ours, unit: int) -> Plain:
    """Everything measured for a cell, in its unit, with null for what JSON cannot hold; without a number the reason."""
    if isinstance(ours, str):
        return {"state": ours}
    sample, interval = ours.sample, ours.sample.interval
    plain = {
        "seeds": sample.seeds,
        "values": [unit * share for share in sample.accuracies],
        "checkpoints": ours.checkpoints,
        "images": sample.n,
        "mean": unit * sample.summary.mean,
        "std": unit * sample.summary.deviation,
        "interval": [unit * interval.low, unit * interval.high] if math.isfinite(interval.low) else None,
        "difference": ours.difference and asdict(ours.difference),
        "p_adjusted": ours.p_adjusted,
    }
    return for_json(plain)


def markdown(table: PrintedTable) -> str:
    text = f"# {escape_markdown(table.title)}\n\n"
    for block in table.blocks:
        text += f"## {escape_markdown(block.caption)}\n\n"
        text += markdown_table(block.head, block.rows, left=block.left) + "\n"
    return text + "".join(f"- {escape_markdown(note)}\n" for note in table.notes)


def latex(table: PrintedTable) -> str:
    text = f"% {escape_latex(table.title)}\n"
    for block in table.blocks:
        caption = escape_latex(block.caption)
        text += f"\n{caption}\n\n" + latex_table(block.head, block.rows, left=block.left)
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
