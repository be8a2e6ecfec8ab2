"""rattle table: runs as a table to paste, mean and std over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rattle.cli.console import say
from rattle.cli.options import RunPaths, check_exists, parse
from rattle.report.compare import over_seeds
from rattle.report.run_data import RunData, load_runs
from rattle.report.tables import TableFormat, write_table
from rattle.runs.io import write_atomically


@dataclass(frozen=True)
class Options:
    """Print a table of runs. Runs that differ in their seed alone share a row; the best of a column is bold only where
    it differs significantly from every other row."""

    runs: RunPaths  # evaluated run folders, or folders of results alone
    format: TableFormat = "markdown"
    out: str = ""  # file to write; the terminal when not given


def read_models(folders: Sequence[Path | str]) -> list[RunData]:
    """Runs and folders of results; what could not be read of them is said on stderr."""
    runs = load_runs(folders)
    for run in runs:
        for note in run.notes:
            say(f"warning: {run.label}: {note}", stderr=True)
    return runs


def main(args: list[str]) -> None:
    options = parse(Options, args, "table")
    check_exists(*options.runs)
    table = over_seeds(read_models(options.runs))
    for sentence in table.refused:
        say(f"not compared: {sentence}", stderr=True)
    text = write_table(table, options.format)
    if options.out:
        write_atomically(Path(options.out), text.encode())
        say(f"the table is in {options.out}")
    else:
        say(text, end="")
