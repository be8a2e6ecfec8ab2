"""Where long work reports lines and progress, and signals that stop it. No torch.

SIGTERM and SIGINT let the step finish, save and stop; a second Ctrl-C stops at once.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

from rattle.runs.paths import printable


class Interrupted(Exception):
    """Raised by work whose caller asked it to stop; the same call later resumes."""


# Called with the number of steps that are done, 1 if not said, and figures to show beside the bar.
Advance = Callable[..., None]
Figures = dict[str, float | str]  # by name


class Console:
    """Where lines and progress bars go; this one shows nothing."""

    def log(self, line: str) -> None:
        pass

    def begin(self, state: Any) -> None:
        """Training begins or resumes from this state (training/state.py)."""

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        """A bar of `total` steps that begins at `done`."""
        return nullcontext(lambda steps=1, **figures: None)


class NullConsole(Console):
    """Shows nothing."""


SILENT = NullConsole()


class RichConsole(Console):
    """Bars when stderr is a terminal or a notebook, else a line every `seconds`."""

    def __init__(self, *, seconds: float = 10.0) -> None:
        from rich.console import Console as Rich

        self.rich, self.seconds = Rich(stderr=True), seconds
        self.live = self.rich.is_terminal or self.rich.is_jupyter

    def log(self, line: str) -> None:
        if self.live:
            self.rich.print(printable(line), highlight=False, markup=False)
        else:
            print(printable(line), file=sys.stderr, flush=True)

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
        shown: Figures = {}
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
                line = f"{title}: {at}/{total}  {written(shown)}"
                if at > done:
                    line += f"  {(now - begun) / (at - done) * (total - at):.0f} s left"
                self.log(line)

        yield advance


def written(figures: Figures) -> str:
    """Each figure with its name.

    >>> written({"loss": 1.23456, "best": "3"})
    'loss 1.235  best 3'
    """
    texts = []
    for name, value in figures.items():
        texts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return "  ".join(texts)


class ProgressOnly(Console):
    """Another console's bars without its lines."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        return self.console.progress(title, total, done=done)


SLURM_WARNING = getattr(signal, "SIGUSR2", None)  # handled if submitit handles it; Windows has none
HANDLED = (signal.SIGTERM, signal.SIGINT, *([SLURM_WARNING] if SLURM_WARNING else []))


class StoppedBySignal(Exception):
    """Work was saved and stopped because of a signal; `code` is the exit code that says which."""

    def __init__(self, number: int, where: str, how: str = "") -> None:
        self.number, self.code = number, 128 + number
        how = how or f"`rattle train {where} --resume`, in Python fit(..., resume=True), continues it"
        super().__init__(f"stopped by {signal.Signals(number).name}; everything is saved in {where}: {how}")

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows."""
        return [str(self)]


class Request:
    """The number of the first signal received; 0 while there was none."""

    def __init__(self) -> None:
        self.number = 0


@contextmanager
def listening() -> Iterator[Request]:
    """Record the first signal instead of acting on it; a second one acts as usual. Only in the main thread."""
    request, former = Request(), {}

    def note(number: int, _: FrameType | None) -> Any:
        request.number = number
        for each, handler in former.items():
            signal.signal(each, handler)

    if threading.current_thread() is threading.main_thread():
        for number in HANDLED:
            if number != SLURM_WARNING or callable(signal.getsignal(number)):
                former[number] = signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
