"""What people see while they wait: a progress bar in a terminal, plain lines where there is none."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rattle.runs.paths import printable
from rattle.runs.progress import Advance


def say(text: str, *, end: str = "\n", stderr: bool = False) -> None:
    """Print text that may hold names from files, with what a terminal would obey escaped."""
    print(printable(text), end=end, file=sys.stderr if stderr else None, flush=True)


class Console:
    """Bars when stderr is a terminal, else a line every `seconds`."""

    def __init__(self, *, seconds: float = 10.0) -> None:
        from rich.console import Console as Rich

        self.rich, self.seconds = Rich(stderr=True), seconds
        self.live = self.rich.is_terminal

    def log(self, line: str) -> None:
        if self.live:
            self.rich.print(printable(line), highlight=False, markup=False)
        else:
            say(line, stderr=True)

    def begin(self, state: Any) -> None:
        """Nothing; `rattle train` describes the run here."""

    def progress(self, title: str, total: int, *, done: int = 0):
        return self.bar(title, total, done) if self.live else self.lines(title, total, done)

    @contextmanager
    def bar(self, title: str, total: int, done: int) -> Iterator[Advance]:
        """A bar with steps, time left and figures; title and figures are cut where the terminal is narrow."""
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(min_width=2 * len(str(total)) + 1)),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(min_width=5)),
            TextColumn("{task.fields[figures]}", markup=False),
        )
        shown: dict[str, float | str] = {}
        with Progress(*columns, console=self.rich, refresh_per_second=4) as progress:
            task = progress.add_task(escape(printable(title)), total=total, completed=done, figures="")

            def advance(steps: int = 1, **figures: float | str) -> None:
                shown.update(figures)
                progress.update(task, advance=steps, figures=written(shown))

            yield advance

    @contextmanager
    def lines(self, title: str, total: int, done: int) -> Iterator[Advance]:
        """A line every few seconds, with the time left by the steps that this process did."""
        begun = said = time.monotonic()
        at, shown = done, {}

        def advance(steps: int = 1, **figures: float | str) -> None:
            nonlocal at, said
            at += steps
            shown.update(figures)
            now = time.monotonic()
            if now - said >= self.seconds:
                said = now
                left = (now - begun) / max(at - done, 1) * (total - at)
                self.log(f"{title}: {at}/{total}  {written(shown)}  {left:.0f} s left")

        yield advance


def written(figures: Mapping[str, float | str]) -> str:
    """Each figure with its name.

    >>> written({"loss": 1.23456, "best": "3"})
    'loss 1.235  best 3'
    """
    texts = []
    for name, value in figures.items():
        texts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return "  ".join(texts)


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
