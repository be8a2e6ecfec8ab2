"""A progress bar as text: one line where all of it fits, else two. Figures are left out whole, never cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

GAP = "  "
SHORTEST, LONGEST, ALONE = 8, 24, 36  # columns of the bar: at least, at most in one line, at most in the second of two
WANTED = 3  # figures that one line must have room for, or there are two


def written(figures: dict[str, float | str]) -> list[str]:
    """Each figure with its name: loss 1.234."""
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()]


def clock(seconds: float) -> str:
    """A duration as it changes least on a screen.

    >>> clock(75), clock(7322), clock(200000)
    ('1:15', '2:02:02', '2 d 7 h')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@dataclass(slots=True)
class Pace:
    """How far work is, and when it will end by the steps that this process did itself."""

    total: int
    at: int = 0  # steps done, those of an earlier process included
    now: Callable[[], float] = time.monotonic
    reports: list[tuple[float, int]] = field(init=False)  # when, and at which step: the start, the first, the last

    def __post_init__(self) -> None:
        self.reports = [(self.now(), self.at)]

    def add(self, steps: int) -> None:
        if steps > 0:
            self.at += steps
            self.reports[2:] = [(self.now(), self.at)]

    @property
    def elapsed(self) -> float:
        return self.now() - self.reports[0][0]

    @property
    def left(self) -> float | None:
        """Seconds until the end; None before this process has done a step."""
        if len(self.reports) == 1:
            return None
        (begun, first), (last, at) = self.reports[-2:]  # from the first report on: what came before was warming up
        return max((last - begun) / (at - first) * (self.total - at) - (self.now() - last), 0.0)

    def words(self) -> list[str]:
        """Steps and time: those left, or those it took."""
        left, steps = self.left, f"{self.at}/{self.total}"
        if self.at >= self.total or left is None:
            return [steps, clock(self.elapsed)]
        return [steps, f"{clock(left)} left"]


def fitting(words: Sequence[str], room: int) -> int:
    """How many of the words, from the first on, fit in so many columns, a gap before each."""
    for count, word in enumerate(words):
        room -= len(GAP) + len(word)
        if room < 0:
            return count
    return len(words)


def lay_out(title: str, counts: Sequence[str], figures: Sequence[str], width: int, *, two: bool = False) -> list[str]:
    """The line or two lines of a bar, `\\0` in the place of each of the bar's columns; `two`: never in one line."""
    around = len(GAP.join(("", *counts)))
    if not two and len(title) + len(GAP) + SHORTEST + around + len(GAP.join(("", *figures[:WANTED]))) <= width:
        room = width - len(title) - len(GAP) - around
        shown = figures[: fitting(figures, room - SHORTEST)]
        bar = min(room - len(GAP.join(("", *shown))), LONGEST)
        return [GAP.join((title, "\0" * bar, *counts, *shown))]
    title = title if len(title) <= width else title[: width - 1] + "…"
    above = fitting(figures, width - len(title))
    room = width - around
    below = figures[above:][: fitting(figures[above:], room - SHORTEST)]
    bar = max(min(room - len(GAP.join(("", *below))), ALONE), 1)
    return [GAP.join((title, *figures[:above])), GAP.join(("\0" * bar, *counts, *below))]


@dataclass(slots=True)
class Bar:
    """What rich redraws: the bar at the width that the terminal has now."""

    title: str
    pace: Pace
    figures: dict[str, float | str] = field(default_factory=dict)
    two: bool = False  # lines: it does not go back to one, which would make the screen jump

    def show(self, figures: dict[str, float | str]) -> None:
        """Change some figures, or all of them and with them their order, which is that of their importance."""
        self.figures = figures if figures.keys() >= self.figures.keys() else self.figures | figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        lines = lay_out(self.title, self.pace.words(), written(self.figures), options.max_width - 1, two=self.two)
        self.two = self.two or len(lines) > 1
        full, empty = ("=", "-") if options.ascii_only else ("━", "─")
        for line in lines:
            columns = line.count("\0")
            filled = round(columns * min(self.pace.at / max(self.pace.total, 1), 1))
            before, _, after = line.partition("\0" * columns) if columns else (line, "", "")
            text = Text(before, no_wrap=True, end="")
            text.append(full * filled, style="green" if self.pace.at >= self.pace.total else "cyan")
            text.append(empty * (columns - filled), style="dim")
            yield text.append(after + "\n")
