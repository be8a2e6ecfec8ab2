"""Verdicts as they come: a line of JSON a batch, so an interrupted evaluation goes on at the first missing image."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle import distributed
from rattle.checkpoint import append_line, digest, write_atomically
from rattle.errors import RattleError

MOST_UNPACKED = 100  # times its packed size; floats of images do not shrink to a hundredth


def fingerprint(model: nn.Module, x: Tensor, y: Tensor, settings: Mapping[str, Any]) -> str:
    """What the verdicts depend on: weights, images, labels and settings. Anything else, and they start afresh."""
    tensors = {f"model.{key}": value.detach().cpu() for key, value in model.state_dict().items()}
    text = json.dumps(settings, sort_keys=True, default=str)
    return digest({**tensors, "x": x.detach().cpu(), "y": y.detach().cpu()}, {"settings": text})


class Verdicts:
    """Batches of verdicts that are on disk already, and the file that the next ones go to; one file a rank."""

    def __init__(self, folder: Path, name: str, mark: str) -> None:
        if not re.fullmatch(r"[\w.,+=-]+", name):
            raise RattleError(f"{name!r} is no name for an attack: its verdicts are stored under it")
        self.stem, self.mark = folder / f".{name}", mark
        self.path = self.stem.with_name(f"{self.stem.name}.{distributed.rank()}.partial")
        self.done: dict[int, dict[str, Any]] = {}
        stale = True
        for path in self.files("partial"):
            rows = list(lines(path))
            if rows and rows[0] == {"mark": mark}:
                self.done |= {row["first"]: row for row in rows[1:]}
                stale = stale and path != self.path
        distributed.barrier()  # everybody has read
        if stale:
            self.path.unlink(missing_ok=True)
            append_line(self.path, {"mark": mark})
        else:
            trim(self.path)

    def files(self, kind: str) -> list[Path]:
        return sorted(self.stem.parent.glob(f"{self.stem.name}.*.{kind}"))

    def add(self, first: int, row: Mapping[str, Any], x_adv: Tensor | None = None) -> None:
        """The verdicts of the batch that begins with image `first`, and its adversarial images when they are kept."""
        if x_adv is not None:
            buffer = io.BytesIO()
            np.save(buffer, x_adv.detach().cpu().float().numpy())
            write_atomically(self.stem.with_name(f"{self.stem.name}.{first}.images.npy"), buffer.getvalue())
        append_line(self.path, {"first": first, **row})

    def images(self, first: int) -> np.ndarray | None:
        path = self.stem.with_name(f"{self.stem.name}.{first}.images.npy")
        return np.load(path) if path.exists() else None


def clear(folder: Path, name: str) -> None:
    """The verdicts are in their final place: what was kept on the way goes."""
    for kind in ("partial", "images.npy"):
        for path in folder.glob(f".{name}.*.{kind}"):
            path.unlink(missing_ok=True)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; a torn one, and what follows it, is not there."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            if not line.endswith("\n"):
                return
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def trim(path: Path) -> None:
    """Cut a torn last line off before more is written."""
    content = path.read_bytes()
    os.truncate(path, content.rfind(b"\n") + 1)


def save_images(path: Path, index: Tensor, x_adv: np.ndarray, y: Tensor) -> None:
    """Adversarial images as .npz: index into the test set, x_adv float32 in [0, 1], y."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, index=index.cpu().numpy(), x_adv=x_adv, y=y.cpu().numpy())
    write_atomically(path, buffer.getvalue())


def load_images(path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """(index, x_adv, y) of a file that save_images wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
            packed = sum(member.compress_size for member in archive.infolist())
        if size > MOST_UNPACKED * max(packed, 2**20):
            raise RattleError(f"{path} would unpack to {size:,} bytes: that is not a file of images")
        with np.load(path, allow_pickle=False) as file:
            return tuple(torch.from_numpy(file[key]) for key in ("index", "x_adv", "y"))  # type: ignore[return-value]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as reason:
        raise RattleError(f"{path} does not hold saved adversarial images: {reason}") from reason
