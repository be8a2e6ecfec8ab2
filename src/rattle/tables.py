"""Tables for the terminal: accuracies in percent with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

from rattle.evaluation import Evaluation
from rattle.statistics import wilson


def percent(flags: Sequence[bool]) -> str:
    """An accuracy and its Wilson 95 % interval, in percent.

    >>> percent([True] * 8 + [False] * 2)
    '80.0 [49.0, 94.3]'
    """
    interval = wilson(sum(flags), len(flags))
    return f"{100 * sum(flags) / len(flags):.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def accuracy_row(name: str, result: Evaluation) -> list[str]:
    """A name, the clean accuracy and that under each attack."""
    return [name, percent(result.clean), *(percent(verdict.flags) for verdict in result.verdicts.values())]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    needed = sum(max(len(row[i]) for row in [columns, *rows]) + 3 for i in range(len(columns)))
    width = max(needed, Console().width)  # never cut a figure, also where there is no terminal
    Console(width=width).print(table)
