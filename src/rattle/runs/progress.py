"""Where long work reports lines and progress, and signals that stop it. No torch.

SIGTERM and SIGINT let the step finish, save and stop; a second Ctrl-C stops at once.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Protocol


class Interrupted(Exception):
    """Raised by work whose caller asked it to stop; the same call later resumes."""


class Advance(Protocol):
    """Report that `steps` more are done, and figures to show beside the bar."""

    def __call__(self, steps: int = 1, **figures: float | str) -> None: ...


class Console(Protocol):
    """Shows lines and progress bars."""

    def log(self, line: str) -> None: ...

    def begin(self, state: Any) -> None:
        """Training begins or resumes from this state (training/state.py)."""
        ...

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        """A bar of `total` steps, of which `done` are done already."""
        ...


class NullConsole:
    """Shows nothing: the default when rattle is used as a library."""

    def log(self, line: str) -> None:
        pass

    def begin(self, state: Any) -> None:
        pass

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        return nullcontext(lambda steps=1, **figures: None)


class ProgressOnly(NullConsole):
    """Another console's bars without its lines."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        return self.console.progress(title, total, done=done)


SLURM_WARNING = getattr(signal, "SIGUSR2", None)  # handled if submitit handles it; Windows has none
HANDLED = (signal.SIGTERM, signal.SIGINT, *([SLURM_WARNING] if SLURM_WARNING else []))


class StoppedBySignal(Exception):
    """Work was saved and stopped because of a signal; `code` is the exit code that says which."""

    def __init__(self, number: int, where: str) -> None:
        self.number, self.code = number, 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}; everything is saved in {where}")


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
