"""What people see while they wait: a progress bar in a terminal, plain lines where there is none."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rattle.cli.bar import GAP, Bar, Pace, clock, written
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
        line = printable(line)
        if self.live:
            narrow = len(line) > self.rich.width  # a line an epoch then still fits in 60 columns
            self.rich.print(line.replace(GAP, " ") if narrow else line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def begin(self, state: Any) -> None:
        """Nothing; `rattle train` describes the run here."""

    def progress(self, title: str, total: int, *, done: int = 0):
        return self.drawn(title, total, done) if self.live else self.lines(title, total, done)

    @contextmanager
    def drawn(self, title: str, total: int, done: int) -> Iterator[Advance]:
        from rich.live import Live

        bar = Bar(printable(title), Pace(total, done))

        def advance(steps: int = 1, **figures: float | str) -> None:
            bar.show(figures)
            bar.pace.add(steps)

        with Live(bar, console=self.rich, refresh_per_second=4):
            yield advance

    @contextmanager
    def lines(self, title: str, total: int, done: int) -> Iterator[Advance]:
        pace, shown, said = Pace(total, done), {}, time.monotonic()

        def advance(steps: int = 1, **figures: float | str) -> None:
            nonlocal said
            shown.update(figures)
            pace.add(steps)
            now = time.monotonic()
            if now - said >= self.seconds or (steps and pace.at >= total and pace.elapsed >= self.seconds):
                said = now
                self.log(GAP.join((f"{title}: {pace.at}/{total}", *written(shown), left_of(pace))))

        yield advance


def left_of(pace: Pace) -> str:
    """When the work will end, for a log."""
    return f"after {clock(pace.elapsed)}" if pace.left is None else f"{pace.left:.0f} s left"


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    stderr: bool = False,
    left: int = 1,  # columns aligned to the left
    close: bool = False,  # two blanks between columns, not three
) -> None:
    """A table on stdout, or on `stderr`. In a terminal too narrow for it, each row becomes a table of two columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns, *rows = [[printable(cell).replace("\n", "\\n") for cell in row] for row in (columns, *rows)]
    title = printable(title)
    needed = sum(max(len(row[i]) for row in [columns, *rows]) + 3 for i in range(len(columns)))
    screen = Console(stderr=stderr)
    if needed > screen.width and screen.is_terminal and len(columns) > 2:
        for row in rows:
            print_table([columns[0], row[0]], list(zip(columns[1:], row[1:], strict=True)), title=title, stderr=stderr)
            title = ""
        return
    table = Table(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.collapse_padding = close
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    wide = max(needed, screen.width)  # never cut a figure, also where there is no terminal
    Console(width=wide, stderr=stderr).print(table)
