"""Images in memory up to a limit; beyond it in a .npy file that is memory-mapped and read batch by batch."""

import hashlib
import math
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rattle.data.dataset import Images
from rattle.data.files import atomic_write
from rattle.errors import RattleError

Shape = tuple[int, int, int, int]  # [n, C, H, W]


@dataclass(frozen=True, slots=True)
class MmapCache:
    """uint8 images [n, C, H, W]: arrays over `limit` bytes are written once, block by block, to `folder`/KEY.npy."""

    folder: Path
    limit: int

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.npy"

    def images(self, shape: Shape, blocks: Iterable[np.ndarray], y: Tensor, *, key: str) -> Images:
        """Images assembled from consecutive blocks, or mapped from the file that an earlier call wrote.

        shape: of the whole array. blocks: uint8 arrays [k, C, H, W]. y: int64 labels [n]. key: see `cache_key`.
        """
        if math.prod(shape) > self.limit:
            if not self.path(key).exists():
                self.write(self.path(key), shape, blocks)
            return self.open(key, y)
        x, done = np.empty(shape, np.uint8), 0
        for block in blocks:
            x[done : done + len(block)] = block
            done += len(block)
        check_count(done, shape, key)
        return Images(torch.from_numpy(x), y)

    def open(self, key: str, y: Tensor) -> Images:
        """Map the file of that key, read-only: its pages are read from disk when they are accessed."""
        path = self.path(key)
        try:
            x = np.load(path, mmap_mode="r", allow_pickle=False)  # mode "c" would reserve memory for all of it
        except (ValueError, OSError, EOFError) as error:
            raise RattleError(f"{path} is damaged: delete it, it is made again") from error
        if len(x) != len(y):
            raise RattleError(f"{path} holds {len(x)} images, not {len(y)}: delete it, it is made again")
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that the array is not writable
            return Images(torch.from_numpy(x), y, mapped=True)

    def write(self, path: Path, shape: Shape, blocks: Iterable[np.ndarray]) -> None:
        """Plain writes, since a full disk would kill the process (SIGBUS) that writes through a memory map."""
        self.folder.mkdir(parents=True, exist_ok=True)
        need, free = math.prod(shape), shutil.disk_usage(self.folder).free
        if need > free:
            raise RattleError(f"the image cache needs {need:,} bytes in {self.folder}, where {free:,} are free")
        header, done = {"descr": "|u1", "fortran_order": False, "shape": shape}, 0
        try:
            with atomic_write(path) as part, part.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                for block in blocks:
                    file.write(np.ascontiguousarray(block).data)
                    done += len(block)
                check_count(done, shape, path.stem)
        except OSError as error:
            raise RattleError(f"cannot write the image cache {path}: {error.strerror or error}") from error


def check_count(done: int, shape: Shape, what: str) -> None:
    if done != shape[0]:
        raise RattleError(f"{what}: {done} images were read where {shape[0]} were announced")


def cache_key(*parts: object) -> str:
    """A short hash of what the images are made from; a Path counts with its size and time of last change."""
    found = hashlib.sha256()
    for part in parts:
        text = str(part)
        if isinstance(part, Path):
            status = part.stat()
            text = f"{part.resolve()}|{status.st_size}|{status.st_mtime_ns}"
        found.update(text.encode(errors="surrogateescape") + b"\0")
    return found.hexdigest()[:16]
