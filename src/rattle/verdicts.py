"""Verdicts as they come: a line of JSON a batch, so an interrupted evaluation goes on at the first missing image."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle import distributed
from rattle.checkpoint import append_line, digest, write_atomically
from rattle.errors import RattleError
from rattle.threat import Threat

MOST_UNPACKED = 100  # times its packed size; floats of images do not shrink to a hundredth


def fingerprint(model: nn.Module, x: Tensor, y: Tensor, settings: Mapping[str, Any]) -> str:
    """What the verdicts depend on: layers, weights, images, labels and settings. Anything else: they start afresh."""
    tensors = {f"model.{key}": value.detach().cpu() for key, value in model.state_dict().items()}
    settings = {**settings, "layers": repr(model)}
    text = json.dumps(settings, sort_keys=True, default=str)
    return digest({**tensors, "x": x.detach().cpu(), "y": y.detach().cpu()}, {"settings": text})


class Verdicts:
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
            if not self.done and distributed.main():  # images of other verdicts
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


def kept_files(folder: Path, name: str, kind: str) -> list[Path]:
    """What was kept of one attack, and of no other whose name begins alike."""
    pattern = re.compile(rf"\.{re.escape(name)}\.\d+\.{re.escape(kind)}")
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))


def clear(folder: Path, name: str) -> None:
    """The verdicts are in their final place: what was kept on the way goes."""
    for kind in ("partial", "images.npy"):
        for path in kept_files(folder, name, kind):
            path.unlink(missing_ok=True)


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


def save_images(path: Path, index: Tensor, x_adv: np.ndarray, y: Tensor, threat: Threat) -> None:
    """Adversarial images as .npz: index into the test set, x_adv float32 in [0, 1], y, and the threat they keep to."""
    buffer = io.BytesIO()
    ball = {"norm": np.array(threat.norm), "epsilon": np.array(threat.epsilon)}
    np.savez_compressed(buffer, index=index.cpu().numpy(), x_adv=x_adv, y=y.cpu().numpy(), **ball)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def check_unpacked_size(path: Path) -> None:
    """Refuse an archive that would fill the memory before it is unpacked."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        packed = sum(member.compress_size for member in archive.infolist())
    if size > MOST_UNPACKED * max(packed, 2**20):
        raise RattleError(f"{path} would unpack to {size:,} bytes: that is not a file of images")


@dataclass(frozen=True, slots=True)
class SavedImages:
    """What save_images wrote."""

    index: Tensor  # into the test set, [n]
    x_adv: Tensor
    y: Tensor
    threat: Threat


def load_images(path: Path) -> SavedImages:
    """Open and check a file that save_images wrote; nothing in it can run."""
    try:
        check_unpacked_size(path)
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            index, x_adv, y = (torch.from_numpy(file[key]) for key in ("index", "x_adv", "y"))
            norm, epsilon = str(file["norm"]), float(file["epsilon"])
    except RattleError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        EOFError,
        zlib.error,
        zipfile.BadZipFile,
    ) as reason:
        raise RattleError(f"{path} is not a file of adversarial images, or is damaged") from reason
    whole_numbers = index.dtype == y.dtype == torch.int64 and index.ndim == y.ndim == 1
    if not whole_numbers or x_adv.dtype != torch.float32 or not len(index) == len(x_adv) == len(y):
        raise RattleError(f"{path} is not a file of adversarial images: index, x_adv and y do not belong together")
    return SavedImages(index, x_adv, y, Threat(norm=norm, epsilon=epsilon))  # type: ignore[arg-type]
