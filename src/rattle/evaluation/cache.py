"""Verdicts as they come: a line of JSON a batch, so an interrupted evaluation goes on at the first missing image."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.evaluation.results import kept_files
from rattle.runs import distributed
from rattle.runs.checkpoint import digest
from rattle.runs.io import append_line, write_atomically


def cache_key(model: nn.Module, x: Tensor, y: Tensor, settings: Mapping[str, Any]) -> str:
    """What the verdicts depend on: layers, weights, images, labels and settings. Anything else: they start afresh."""
    tensors = {f"model.{key}": value.detach().cpu() for key, value in model.state_dict().items()}
    settings = {**settings, "layers": repr(model)}
    text = json.dumps(settings, sort_keys=True, default=str)
    return digest({**tensors, "x": x.detach().cpu(), "y": y.detach().cpu()}, {"settings": text})


class ResultCache:
    """Batches of verdicts that are on disk already, and the file that the next ones go to; one file a rank."""

    def __init__(self, folder: Path, name: str, mark: str) -> None:
        if not re.fullmatch(r"[\w.,+=-]+", name):
            raise RattleError(f"{name!r} is no name for an attack: its verdicts are stored under it")
        self.folder, self.name = folder, name
        self.path = folder / f".{name}.{distributed.rank()}.partial"
        self.done: dict[int, dict[str, Any]] = {}
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in kept_files(folder, name, "partial"):
                rows = list(lines(path))
                if rows and rows[0] == {"mark": mark}:
                    self.done |= {row["first"]: row for row in rows[1:]}
            distributed.barrier()  # all have read what the ranks of an earlier call wrote
            own = next(lines(self.path), None) if self.path.exists() else None
            if own == {"mark": mark}:
                trim(self.path)
            else:
                self.path.unlink(missing_ok=True)
                append_line(self.path, {"mark": mark})
            if not self.done and distributed.is_main():  # images of other verdicts
                for path in kept_files(folder, name, "images.npy"):
                    path.unlink()
            distributed.barrier()

    def add(self, first: int, row: Mapping[str, Any], x_adv: Tensor | None = None) -> None:
        """The verdicts of the batch that begins with image `first`, and its adversarial images when they are kept."""
        if x_adv is not None:
            buffer = io.BytesIO()
            np.save(buffer, x_adv.detach().cpu().float().numpy())
            write_atomically(self.place(first), buffer.getvalue())
        append_line(self.path, {"first": first, **row})

    def place(self, first: int) -> Path:
        return self.folder / f".{self.name}.{first}.images.npy"

    def images(self, first: int) -> np.ndarray | None:
        return np.load(self.place(first)) if self.place(first).exists() else None


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """A folder that cannot be written to is the user's to mend."""
    try:
        yield
    except OSError as reason:
        raise RattleError(f"cannot keep verdicts in {folder}: {reason.strerror or reason}") from reason


def whole(line: bytes) -> dict[str, Any] | None:
    """The object that a line holds; None when it is torn or damaged."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.keys() & {"mark", "first"} else None


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; a torn one, and what follows it, is not there."""
    for line in path.read_bytes().splitlines(keepends=True):
        row = whole(line)
        if row is None:
            return
        yield row


def trim(path: Path) -> None:
    """Cut a torn line, and what follows it, off before more is written."""
    good = takewhile(lambda line: whole(line) is not None, path.read_bytes().splitlines(keepends=True))
    os.truncate(path, sum(map(len, good)))
