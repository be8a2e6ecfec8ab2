"""What long work reports to: lines and progress bars. The command line's console draws them; this one is silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Interrupted(Exception):
    """Work that can be done again was broken off because its caller asked it to stop."""


class Advance(Protocol):
    """Say that `steps` more are done, and what the figures are now."""

    def __call__(self, steps: int = 1, **figures: float | str) -> None: ...


class Console(Protocol):
    """Where lines and progress go."""

    @property
    def live(self) -> bool:
        """Whether bars are redrawn in place, so that lines between them are not needed."""
        ...

    def log(self, line: str) -> None: ...

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]: ...


class NullConsole:
    """For use as a library: says nothing."""

    live = False

    def log(self, line: str) -> None:
        pass

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        yield lambda steps=1, **figures: None


class ProgressOnly:
    """Another console's bars, without the lines between them."""

    live = True

    def __init__(self, console: Console) -> None:
        self.console = console

    def log(self, line: str) -> None:
        pass

    def progress(self, title: str, total: int, *, done: int = 0) -> AbstractContextManager[Advance]:
        return self.console.progress(title, total, done=done)
