"""The live view of a run: what `rattle watch` draws, from metrics.jsonl and timing.jsonl as they grow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rattle.errors import RattleError
from rattle.report.naming import method_of
from rattle.report.page import duration
from rattle.report.run_data import Plain, RunData, finite, read_jsonl, read_recipe

if TYPE_CHECKING:
    from rich.console import RenderableType

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille: [row][column] of a cell's eight dots
COLOURS = ("bright_blue", "dark_orange", "green", "magenta", "yellow", "cyan")
PATIENCE = 5  # epochs without a line before a run is thought to have stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is."""

    name: str
    method: str
    epochs: int | None  # of the recipe
    metrics: list[Plain] = field(default_factory=list)
    epoch_seconds: float | None = None  # median of the last ten
    silent: float | None = None  # seconds since the last line
    notes: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return int(self.metrics[-1]["epoch"]) if self.metrics else 0

    @property
    def ended(self) -> bool:
        return self.epochs is not None and self.done >= self.epochs

    @property
    def left(self) -> float | None:
        """Seconds to go, by the pace of the last epochs."""
        if self.epochs is None or self.epoch_seconds is None:
            return None
        since = min(self.silent or 0.0, self.epoch_seconds)
        return max(0.0, (self.epochs - self.done) * self.epoch_seconds - since)

    @property
    def status(self) -> str:
        """A sentence about where the run is."""
        if not self.metrics:
            return "waiting for the first epoch"
        if self.ended:
            return f"the run has ended: {self.done} of {self.epochs} epochs"
        stalled = self.silent is not None and self.silent > max(30.0, PATIENCE * (self.epoch_seconds or 0.0))
        if stalled:
            return f"epoch {self.done}/{self.epochs}; no news for {duration(self.silent)}: the run may have stopped"
        ahead = f", about {duration(self.left)} left" if self.left is not None else ""
        return f"epoch {self.done}/{self.epochs or '?'}{ahead}"


def progress(folder: Path | str, *, now: float | None = None) -> Progress:
    """Read a run that may still be going."""
    run = RunData(Path(folder))
    if not run.folder.is_dir():
        raise RattleError(f"there is no run folder {folder}")
    if not (run.folder / "recipe.yaml").is_file():
        raise RattleError(f"{folder} holds no run: it has no recipe.yaml")
    read_recipe(run)
    path = run.folder / "metrics.jsonl"
    metrics, timing = read_jsonl(path, run.notes), read_jsonl(run.folder / "timing.jsonl", [])
    seconds = [s for entry in timing[-10:] if (s := finite(entry.get("seconds"))) is not None]
    epochs = run.recipe.get("epochs")
    return Progress(
        name=run.name,
        method=method_of(run.recipe),
        epochs=epochs if isinstance(epochs, int) else None,
        metrics=metrics,
        epoch_seconds=median(seconds) if seconds else None,
        silent=max(0.0, (now or time.time()) - path.stat().st_mtime) if metrics else None,
        notes=run.notes,
    )


def braille(curves: Sequence[Sequence[float]], width: int, height: int, low: float, high: float) -> list[list[int]]:
    """Each curve over the same rectangle of cells, as bit patterns: [curve][row * width + column]."""
    drawn = []
    for values in curves:
        cells = [0] * (width * height)
        n, across, down = len(values), 2 * width - 1, 4 * height - 1
        previous = None
        for x in range(across + 1):
            place = x / max(across, 1) * (n - 1)
            i = min(int(place), max(n - 2, 0))
            value = values[0] if n == 1 else values[i] + (place - i) * (values[i + 1] - values[i])
            share = (value - low) / (high - low) if high > low else 0.0
            y = down - round(down * min(max(share, 0.0), 1.0))
            last = y if previous is None else previous
            for row in range(min(y, last), max(y, last) + 1):
                cells[row // 4 * width + x // 2] |= DOTS[row % 4][x % 2]
            previous = y
        drawn.append(cells)
    return drawn


def chart(curves: Mapping[str, Sequence[float]], *, width: int, height: int, low: float | None = None) -> Any:
    """Curves in braille with a scale at the left, a colour each, as rich text."""
    from rich.text import Text

    values = [value for curve in curves.values() for value in curve]
    bottom = min(values) if low is None else min(low, *values)
    top = max(max(values), bottom + 1e-9)
    drawn = braille(list(curves.values()), width, height, bottom, top)
    text = Text(no_wrap=True)
    for row in range(height):
        mark = f"{top:8.3f} " if row == 0 else f"{bottom:8.3f} " if row == height - 1 else " " * 9
        text.append(mark, style="dim")
        for column in range(width):
            here = [(cells[row * width + column], i) for i, cells in enumerate(drawn)]
            bits = 0
            for pattern, _ in here:
                bits |= pattern
            first = next((i for pattern, i in here if pattern), 0)
            text.append(chr(0x2800 + bits) if bits else " ", style=COLOURS[first % len(COLOURS)])
        text.append("\n")
    text.append(" " * 9)
    for i, (name, curve) in enumerate(curves.items()):
        text.append(f"{name} {curve[-1]:.4g}   ", style=COLOURS[i % len(COLOURS)])
    return text


def curves_of(metrics: Sequence[Plain], names: Sequence[str]) -> dict[str, list[float]]:
    """Those of the columns that hold numbers."""
    found = {name: [v for entry in metrics if (v := finite(entry.get(name))) is not None] for name in names}
    return {name: values for name, values in found.items() if values}


def view(state: Progress, *, width: int = 80, live: bool = True) -> RenderableType:
    """The whole screen."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    parts: list[Any] = [Text(state.status, style="bold green" if state.ended else "bold")]
    if state.epochs:
        parts.append(ProgressBar(total=state.epochs, completed=state.done, width=min(60, width - 6)))
    across = max(20, min(width - 16, 100))
    accuracy = curves_of(state.metrics, ("val_robust", "val_clean", "val_robust_average"))
    if accuracy:
        parts += [Text("\nheld-out accuracy", style="dim"), chart(accuracy, width=across, height=6, low=0.0)]
    last = state.metrics[-1] if state.metrics else {}
    terms = [name for name in last if name not in ("epoch", "step", "lr") and not name.startswith("val_")]
    if losses := curves_of(state.metrics, terms):
        parts += [Text("\nloss by term", style="dim"), chart(losses, width=across, height=6, low=0.0)]
    if (rate := finite(last.get("lr"))) is not None:
        pace = f", an epoch takes {duration(state.epoch_seconds)}" if state.epoch_seconds else ""
        parts.append(Text(f"\nlearning rate {rate:.3g}{pace}", style="dim"))
    parts += [Text(note, style="yellow") for note in state.notes]
    if live:
        parts.append(Text("\nq leaves; the run goes on", style="dim"))
    return Panel(Group(*parts), title=Text(f"{state.name}  ({state.method})"), title_align="left")


def plain_line(entry: Plain, epochs: int | None) -> str:
    """An epoch in a line, where there is no terminal."""
    figures = "  ".join(
        f"{name} {value:.4g}" for name, v in entry.items() if name != "epoch" and (value := finite(v)) is not None
    )
    return f"epoch {entry['epoch']}/{epochs or '?'}  {figures}"
