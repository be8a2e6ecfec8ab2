"""What people see while they wait: a progress bar in a terminal, plain lines where there is none, nothing on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Say that `steps` more are done, and what the figures are now."""

    def __call__(self, steps: int = 1, **figures: float | str) -> None: ...


def written(figures: dict[str, float | str]) -> str:
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )


class Silent:
    """For use as a library: says nothing."""

    def say(self, line: str) -> None:
        pass

    @contextmanager
    def bar(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        yield lambda steps=1, **figures: None


class Bars(Silent):
    """Another console's bars, without the lines between them."""

    live = True

    def __init__(self, console: Console | Silent) -> None:
        self.console = console

    def bar(self, title: str, total: int, *, done: int = 0):
        return self.console.bar(title, total, done=done)


class Console:
    """Bars when stderr is a terminal, else a line every `seconds`."""

    def __init__(self, *, seconds: float = 10.0) -> None:
        from rich.console import Console as Rich

        self.rich, self.seconds = Rich(stderr=True), seconds
        self.live = self.rich.is_terminal

    def say(self, line: str) -> None:
        if self.live:
            self.rich.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def bar(self, title: str, total: int, *, done: int = 0):
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
                self.say(f"{title}: {at}/{total}  {written(figures)}  {left:.0f} s left")

        yield advance
