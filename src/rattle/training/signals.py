"""Being asked to stop: SIGTERM and SIGINT finish the step, save and leave; a second Ctrl-C leaves at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rattle.runs.progress import Advance, Interrupted, NullConsole

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # SIGUSR2 is SLURM's warning, where somebody listens for it


class StoppedBySignal(Exception):
    """The work was saved because somebody asked it to stop; `code` is the exit code that says so."""

    def __init__(self, number: int, where: str) -> None:
        self.number, self.code = number, 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}; everything is saved in {where}")


class Request:
    """Whether somebody has asked, and by which signal."""

    def __init__(self) -> None:
        self.number = 0


@contextmanager
def listening() -> Iterator[Request]:
    """Note the first SIGTERM or SIGINT; the second acts as it always does. Elsewhere than the main thread: no-op."""
    request, former = Request(), {}

    def note(number: int, _: FrameType | None) -> Any:
        request.number = number
        for each, handler in former.items():
            signal.signal(each, handler)

    if threading.current_thread() is threading.main_thread():
        for number in HANDLED:
            if number != signal.SIGUSR2 or callable(signal.getsignal(number)):
                former[number] = signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class CancellableProgress(NullConsole):
    """Given to work of one process in place of a console: breaks it off when somebody asks."""

    def __init__(self, request: Request) -> None:
        self.request = request

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        def advance(steps: int = 1, **figures: float | str) -> None:
            if self.request.number:
                raise Interrupted

        yield advance
