"""What people see while they wait: a progress bar in a terminal, plain lines where there is none."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rattle.runs.progress import Advance


def written(figures: dict[str, float | str]) -> str:
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )


class Console:
    """Bars when stderr is a terminal, else a line every `seconds`."""

    def __init__(self, *, seconds: float = 10.0) -> None:
        from rich.console import Console as Rich

        self.rich, self.seconds = Rich(stderr=True), seconds
        self.live = self.rich.is_terminal

    def log(self, line: str) -> None:
        if self.live:
            self.rich.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def begin(self, state: Any) -> None:
        """Nothing; `rattle train` describes the run here."""

    def progress(self, title: str, total: int, *, done: int = 0):
        return self.drawn(title, total, done) if self.live else self.lines(title, total, done)

    @contextmanager
    def drawn(self, title: str, total: int, done: int) -> Iterator[Advance]:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", style="dim"),
        )
        with Progress(*columns, console=self.rich) as progress:
            task = progress.add_task(title, total=total, completed=done, figures="")

            def advance(steps: int = 1, **figures: float | str) -> None:
                if figures:
                    progress.update(task, advance=steps, figures=written(figures))
                else:
                    progress.advance(task, steps)

            yield advance

    @contextmanager
    def lines(self, title: str, total: int, done: int) -> Iterator[Advance]:
        begun = said = time.monotonic()
        at = first = done

        def advance(steps: int = 1, **figures: float | str) -> None:
            nonlocal said, at
            at += steps
            now = time.monotonic()
            if now - said >= self.seconds or (at >= total and now - begun >= self.seconds):
                said = now
                left = (now - begun) / max(at - first, 1) * (total - at)
                self.log(f"{title}: {at}/{total}  {written(figures)}  {left:.0f} s left")

        yield advance


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    stderr: bool = False,
    left: int = 1,  # columns aligned to the left
    close: bool = False,  # two blanks between columns, not three
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.collapse_padding = close
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    needed = sum(max(len(row[i]) for row in [columns, *rows]) + 3 for i in range(len(columns)))
    wide = max(needed, Console().width)  # never cut a figure, also where there is no terminal
    Console(width=wide, stderr=stderr).print(table)
