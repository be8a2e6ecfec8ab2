"""The live view of a run: what `rattle watch` draws, from metrics.jsonl and timing.jsonl as they grow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from rattle.report.naming import duration
from rattle.report.run_data import RunData, finite, read_recipe
from rattle.runs.io import Plain, read_jsonl
from rattle.runs.paths import Run, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # braille: [row, column] of a cell's dots
COLOURS = ("bright_blue", "dark_orange", "green", "magenta", "yellow", "cyan")
STALLED_EPOCHS = 5  # epochs without a line after which a run is thought to have stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is."""

    run: RunData  # with its recipe, metrics, timing and notes
    epochs: int | None  # of the recipe
    epoch_seconds: float | None  # median of the last ten
    seconds_since: float | None  # the last line was written

    @property
    def done(self) -> int:
        return int(self.run.metrics[-1]["epoch"]) if self.run.metrics else 0

    @property
    def ended(self) -> bool:
        return self.epochs is not None and self.done >= self.epochs

    @property
    def seconds_left(self) -> float | None:
        """By the pace of the last epochs."""
        if self.epochs is None or self.epoch_seconds is None:
            return None
        since = min(self.seconds_since or 0.0, self.epoch_seconds)
        return max(0.0, (self.epochs - self.done) * self.epoch_seconds - since)

    @property
    def status(self) -> str:
        """A sentence about where the run is."""
        since, left = self.seconds_since, self.seconds_left
        if not self.run.metrics:
            return "waiting for the first epoch"
        if self.ended:
            return f"the run has ended: {self.done} of {self.epochs} epochs"
        if since is not None and since > max(30.0, STALLED_EPOCHS * (self.epoch_seconds or 0.0)):
            return f"epoch {self.done}/{self.epochs}; no news for {duration(since)}: the run may have stopped"
        ahead = f", about {duration(left)} left" if left is not None else ""
        return f"epoch {self.done}/{self.epochs or '?'}{ahead}"


def progress(folder: Path | str, *, now: float | None = None) -> Progress:
    """Read a run that may still be training; `now` is the time in seconds since the epoch, the clock's by default."""
    run, files = read_recipe(Path(folder)), Run(Path(folder))
    run.metrics, run.timing = read_jsonl(files.metrics, run.notes), read_jsonl(files.timing, [])
    seconds = [s for entry in run.timing[-10:] if (s := finite(entry.get("seconds"))) is not None]
    epochs = run.recipe.get("epochs")
    return Progress(
        run=run,
        epochs=epochs if isinstance(epochs, int) else None,
        epoch_seconds=median(seconds) if seconds else None,
        seconds_since=max(0.0, (now or time.time()) - files.metrics.stat().st_mtime) if run.metrics else None,
    )


def braille(values: Sequence[float], width: int, height: int, low: float, high: float) -> np.ndarray:
    """A curve over a rectangle of cells as bit patterns, [height, width]; its values lie between low and high."""
    across, down = 2 * width, 4 * height - 1
    heights = np.interp(np.linspace(0, len(values) - 1, across), np.arange(len(values)), values)
    share = np.clip((heights - low) / (high - low if high > low else 1.0), 0, 1)
    rows = down - np.round(down * share).astype(int)
    cells = np.zeros((height, width), dtype=int)
    for x, (y, before) in enumerate(zip(rows, [rows[0], *rows], strict=False)):
        for row in range(min(y, before), max(y, before) + 1):  # a steep curve fills the dots in between
            cells[row // 4, x // 2] |= DOTS[row % 4, x % 2]
    return cells


def chart(curves: Mapping[str, Sequence[float]], *, width: int, height: int) -> Text:
    """Curves in braille with a scale at the left that begins at 0 or below, a colour each, and a legend."""
    from rich.text import Text

    values = [value for curve in curves.values() for value in curve]
    low = min(0.0, *values)
    high = max(*values, low + 1e-9)
    patterns = np.stack([braille(curve, width, height, low, high) for curve in curves.values()])
    dots, first = np.bitwise_or.reduce(patterns), (patterns > 0).argmax(0)  # where curves meet, the first one's colour
    labels = [f"{high:8.3f} ", *[" " * 9] * (height - 2), f"{low:8.3f} "]
    text = Text(no_wrap=True)
    for row in range(height):
        text.append(labels[row], style="dim")
        for bits, curve in zip(dots[row], first[row], strict=True):
            text.append(chr(0x2800 + bits) if bits else " ", style=COLOURS[curve % len(COLOURS)])
        text.append("\n")
    text.append(" " * 9)
    used = 0
    for i, (name, curve) in enumerate(curves.items()):
        entry = f"{printable(name)} {curve[-1]:.4g}   "
        if used and used + len(entry.rstrip()) > width:  # no figure is cut
            text.append("\n" + " " * 9)
            used = 0
        used += len(entry)
        text.append(entry, style=COLOURS[i % len(COLOURS)])
    return text


def curves_of(metrics: Sequence[Plain], names: Sequence[str]) -> dict[str, list[float]]:
    """Those of the columns that hold numbers."""
    found = {name: [v for entry in metrics if (v := finite(entry.get(name))) is not None] for name in names}
    return {name: values for name, values in found.items() if values}


def view(state: Progress, *, width: int = 80, live: bool = True) -> RenderableType:
    """The whole screen, `width` columns wide; `live` adds which key leaves it."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    parts: list[Any] = [Text(state.status, style="bold green" if state.ended else "bold")]
    if state.epochs:
        parts.append(ProgressBar(total=state.epochs, completed=state.done, width=min(60, width - 6)))
    across = max(20, min(width - 16, 100))
    accuracy = curves_of(state.run.metrics, ("val_robust", "val_clean", "val_robust_average"))
    if accuracy:
        parts += [Text("\nheld-out accuracy", style="dim"), chart(accuracy, width=across, height=6)]
    last = state.run.metrics[-1] if state.run.metrics else {}
    terms = [name for name in last if name not in ("epoch", "step", "lr") and not name.startswith("val_")]
    if losses := curves_of(state.run.metrics, terms):
        parts += [Text("\nloss by term", style="dim"), chart(losses, width=across, height=6)]
    if (rate := finite(last.get("lr"))) is not None:
        pace = f", an epoch takes {duration(state.epoch_seconds)}" if state.epoch_seconds else ""
        parts.append(Text(f"\nlearning rate {rate:.3g}{pace}", style="dim"))
    parts += [Text(printable(note), style="yellow") for note in state.run.notes]
    if live:
        parts.append(Text("\nq leaves; the run goes on", style="dim"))
    method = f"{state.run.method}, seed {state.run.seed}"
    return Panel(Group(*parts), title=Text(printable(f"{state.run.name}  ({method})")), title_align="left")


def epoch_line(entry: Plain, epochs: int | None) -> str:
    """An epoch of `epochs` in a line, where there is no terminal."""
    values = "  ".join(
        f"{name} {value:.4g}" for name, v in entry.items() if name != "epoch" and (value := finite(v)) is not None
    )
    return f"epoch {entry['epoch']}/{epochs or '?'}  {values}"
