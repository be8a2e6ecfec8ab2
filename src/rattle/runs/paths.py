"""The layout of a run folder: recipe.yaml, metrics.jsonl, timing.jsonl, events/, checkpoints/, results/ and so on."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

PARTS = (
    "checkpoints",
    "metrics.jsonl",
    "timing.jsonl",
    "events",
    "results",
    "report.html",
    "train.log",
    "diverged.txt",
    "environment.json",
    "recipe.yaml",  # last: a folder half cleared is still a run's
)


@dataclass(frozen=True, slots=True)
class Run:
    """Where things are in a run folder."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def timing(self) -> Path:
        return self.folder / "timing.jsonl"

    @property
    def events(self) -> Path:
        return self.folder / "events"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def gallery(self) -> Path:
        return self.results / "gallery.npz"

    @property
    def flatness(self) -> Path:
        return self.results / "flatness.json"

    def landscape(self, kind: str) -> Path:
        """The arrays of a loss surface: `input`, `weight-1d` or `weight-2d`; `plane` is the directions they share."""
        return self.results / f"landscape-{kind}.npz"

    def checkpoint(self, name: str) -> Path:
        return self.folder / "checkpoints" / f"{name}.safetensors"

    @property
    def divergence(self) -> str | None:
        """Where the loss diverged for good, in words; None when it did not, or training was taken up again since."""
        path = self.folder / "diverged.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else None


def epoch_name(epoch: int) -> str:
    """What the checkpoint of an epoch that is kept is called."""
    return f"epoch-{epoch:03d}"


def slugify(text: str, longest: int = 120) -> str:
    """A folder's name made of a text, in characters that no file system or shell minds; it leads nowhere else.

    >>> slugify("../../epsilon=8/255")
    '_.._epsilon=8_255'
    """
    name = re.sub(r"[^A-Za-z0-9.,=+_-]", "_", text).lstrip(".-") or "run"
    if len(name) > longest:
        name = f"{name[: longest - 9]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
    return name
