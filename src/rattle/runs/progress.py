"""Where long work reports lines and progress: the contract of a console, and one that shows nothing. No torch."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol


class Interrupted(Exception):
    """Raised by work whose caller asked it to stop; the same call later resumes."""


class Advance(Protocol):
    """Report that `steps` more are done, and figures to show beside the bar."""

    def __call__(self, steps: int = 1, **figures: float | str) -> None: ...


class Console(Protocol):
    """Shows lines and progress bars."""

    @property
    def live(self) -> bool:
        """Whether bars are redrawn in place, which makes lines about progress unnecessary."""
        ...

    def log(self, line: str) -> None: ...

    def begin(self, state: Any) -> None:
        """Training begins or resumes from this state (training/state.py)."""
        ...

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        """A bar of `total` steps, of which `done` are done already."""
        ...


class NullConsole:
    """Shows nothing: the default when rattle is used as a library."""

    live = False

    def log(self, line: str) -> None:
        pass

    def begin(self, state: Any) -> None:
        pass

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        return nullcontext(lambda steps=1, **figures: None)


class ProgressOnly(NullConsole):
    """Another console's bars without its lines."""

    live = True

    def __init__(self, console: Console) -> None:
        self.console = console

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        return self.console.progress(title, total, done=done)
