"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), the python version: the unpacked folder or the .tar.gz as it came."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.files import MEMBER_LIMIT, check_size, find, readable
from rattle.data.mmap_cache import MmapCache, cache_key, stamp
from rattle.data.pickles import as_text, load_pickle
from rattle.errors import RattleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the files are called and where in them the labels are."""

    name: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.meta)


CIFAR10 = Layout(
    name="cifar10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    labels="labels",
    names="label_names",
)
CIFAR100 = Layout(
    name="cifar100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train=("train",),
    test="test",
    meta="meta",
    labels="fine_labels",
    names="fine_label_names",
)


def cifar(layout: Layout, root: Path, cache: MmapCache) -> Dataset:
    place = find(layout.name, root, (layout.folder, layout.archive))
    raw = read_folder(place, layout) if place.is_dir() else read_archive(place, layout)
    missing = [file for file in layout.files if file not in raw]
    if missing:
        raise RattleError(
            f"{place} lacks {', '.join(missing)}; get it whole with `rattle data get {layout.name} --root {root}`"
        )
    loaded = {file: load_pickle(raw.pop(file), f"{place}: {file}") for file in layout.files}
    names = loaded[layout.meta].get(layout.names)
    if not isinstance(names, list):
        raise RattleError(f"{place}: {layout.meta} has no list {layout.names}")

    def part(files: tuple[str, ...]) -> Images:
        batches = [batch(loaded[file], layout.labels, f"{place}: {file}") for file in files]
        y = torch.cat([torch.as_tensor(labels, dtype=torch.int64) for _, labels in batches])
        key = cache_key(layout.name, files, stamp(place), len(y))
        return cache.images((len(y), 3, 32, 32), (x for x, _ in batches), y, key=key)

    return Dataset(
        name=layout.name, train=part(layout.train), test=part((layout.test,)), classes=tuple(map(as_text, names))
    )


def batch(loaded: dict[str, Any], labels_key: str, where: str) -> tuple[np.ndarray, list[int]]:
    """uint8 [k, 3, 32, 32] and k labels."""
    x, labels = loaded.get("data"), loaded.get(labels_key)
    if not (isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 2 and x.shape[1] == 3072):
        raise RattleError(f"{where}: `data` is not uint8 [k, 3072]")
    if not (isinstance(labels, list) and len(labels) == len(x) and all(isinstance(label, int) for label in labels)):
        raise RattleError(f"{where}: `{labels_key}` is not a list of {len(x)} whole numbers")
    return x.reshape(-1, 3, 32, 32), labels


def read_folder(place: Path, layout: Layout) -> dict[str, bytes]:
    found = [place / file for file in layout.files if (place / file).is_file()]
    for path in found:
        check_size(path.stat().st_size, str(path))
    return {path.name: path.read_bytes() for path in found}


class BoundedGzip(gzip.GzipFile):
    """Refuses one read of more than a member may hold: a tar header can ask for that too."""

    def read(self, size: int | None = -1) -> bytes:
        check_size(size or 0, str(self.name))
        return super().read(size)


def read_archive(place: Path, layout: Layout) -> dict[str, bytes]:
    """The wanted members, read one by one into memory: nothing is unpacked to disk, whatever the members are called."""
    wanted = {f"{layout.folder}/{file}": file for file in layout.files}
    raw: dict[str, bytes] = {}
    with (
        readable(place, tarfile.TarError, zlib.error),
        BoundedGzip(place) as unzipped,
        tarfile.open(fileobj=unzipped, mode="r:") as archive,
    ):
        for member in archive:
            check_size(member.size, f"{place}: {member.name}")
            file = wanted.get(member.name.removeprefix("./"))
            stream = archive.extractfile(member) if file and member.isfile() else None
            if file and stream:
                raw[file] = stream.read(MEMBER_LIMIT)
        while unzipped.read(2**20):  # to the end, where gzip keeps the checksum of it all
            pass
    return raw


def cifar10(root: Path, cache: MmapCache) -> Dataset:
    return cifar(CIFAR10, root, cache)


def cifar100(root: Path, cache: MmapCache) -> Dataset:
    return cifar(CIFAR100, root, cache)
