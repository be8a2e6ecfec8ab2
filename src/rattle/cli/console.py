"""What commands print: lines, tables and progress."""

import sys
from collections.abc import Sequence

from rattle.runs.paths import printable
from rattle.runs.progress import RichConsole as Console

__all__ = ["Console", "print_table", "say"]


def say(text: str, *, end: str = "\n", stderr: bool = False) -> None:
    """Print text that may hold names from files, with what a terminal would obey escaped."""
    print(printable(text), end=end, file=sys.stderr if stderr else None, flush=True)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    stderr: bool = False,
    left: int = 1,  # columns aligned to the left
) -> None:
    """A table on stdout, or on `stderr`; cells are folded in a terminal that is too narrow."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def cell(text: str) -> Text:
        return Text(printable(text).replace("\n", "\\n"))

    table = Table(title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.title = cell(title) if title else None
    for i, column in enumerate(columns):
        table.add_column(cell(column), justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    screen = Console(stderr=stderr)
    if not screen.is_terminal:
        screen.width = 10_000  # never cut a figure: the table is as wide as it has to be
    screen.print(table)
