"""rattle table: runs as a table to paste, mean and standard deviation over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.report.compare import over_seeds
from rattle.report.run_data import load_runs
from rattle.report.tables import Format, write_table


@dataclass(frozen=True)
class Options:
    """Print a table of runs. Runs that differ in their seed alone share a row; the best of a column is bold only where
    it differs significantly from every other row."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # evaluated run folders
    format: Format = "markdown"
    out: str = ""  # file to write; the terminal when not given


def main(args: list[str]) -> None:
    options = parse(Options, args, "table")
    text = write_table(over_seeds(load_runs(options.runs)), options.format)
    if not options.out:
        print(text, end="")
        return
    try:
        Path(options.out).write_text(text, encoding="utf-8")
    except OSError as reason:
        raise RattleError(f"cannot write {options.out}: {reason.strerror or reason}") from reason
    print(f"the table is in {options.out}")
