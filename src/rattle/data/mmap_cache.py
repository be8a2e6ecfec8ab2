"""Where images are kept: in memory up to a limit, beyond it in a file that is mapped and read by the batch."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rattle.data.dataset import Images
from rattle.errors import RattleError

Shape = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class MmapCache:
    """Keeps uint8 [n, C, H, W]: sets over `limit` bytes as `folder`/KEY.npy, written once, block by block."""

    folder: Path
    limit: int

    def images(self, shape: Shape, blocks: Iterable[np.ndarray], y: Tensor, *, key: str) -> Images:
        """Images of that shape out of consecutive blocks [k, C, H, W]; the key names what they were made from."""
        if math.prod(shape) <= self.limit:
            x, done = np.empty(shape, np.uint8), 0
            for block in blocks:
                x[done : done + len(block)] = block
                done += len(block)
            check_count(done, shape, key)
            return Images(torch.from_numpy(x), y)
        if not self.path(key).exists():
            self.write(self.path(key), shape, blocks)
        return self.open(key, y)

    def open(self, key: str, y: Tensor) -> Images:
        """What was written under that key."""
        x = mapped(self.path(key))
        if len(x) != len(y):
            raise RattleError(f"{self.path(key)} holds {len(x)} images, not {len(y)}: delete it, it is made again")
        return Images(x, y, mapped=True)

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.npy"

    def write(self, path: Path, shape: Shape, blocks: Iterable[np.ndarray]) -> None:
        """By plain writes and one rename: a full disk is an error here, and nobody sees half a file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        need, free = math.prod(shape), shutil.disk_usage(self.folder).free
        if need > free:
            raise RattleError(f"the image cache needs {need:,} bytes in {self.folder}, where {free:,} are free")
        part = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")  # ranks may write it at once
        try:
            with part.open("wb") as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                done = 0
                for block in blocks:
                    file.write(np.ascontiguousarray(block).data)
                    done += len(block)
            check_count(done, shape, path.stem)
            os.replace(part, path)
        except OSError as error:
            raise RattleError(f"cannot write the image cache {path}: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)


def check_count(done: int, shape: Shape, what: str) -> None:
    if done != shape[0]:
        raise RattleError(f"{what}: {done} images were read where {shape[0]} were announced")


def mapped(path: Path) -> Tensor:
    """The array of a .npy file as a tensor whose pages are read when they are touched. Nothing may write to it."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # "c" would have to reserve the whole in memory
    except (ValueError, OSError, EOFError) as error:
        raise RattleError(f"{path} is damaged: delete it, it is made again") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def cache_key(*parts: object) -> str:
    """A short name for what a cached file was made from."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def stamp(path: Path) -> str:
    """Changes when the file does."""
    status = path.stat()
    return f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
