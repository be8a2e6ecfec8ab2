"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), python version: the unpacked folder or the downloaded .tar.gz."""

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.files import find_folder
from rattle.data.pickles import as_text, load_pickle
from rattle.data.sources import URLS
from rattle.errors import RattleError
from rattle.settings import Plain


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of a dataset's files, and the keys of the dicts pickled in them."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str  # key of the labels in a batch
    names: str  # key of the class names in the meta file


BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR10 = Layout("cifar10", "cifar-10-batches-py", BATCHES, "test_batch", "batches.meta", "labels", "label_names")
CIFAR100 = Layout("cifar100", "cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names")


def cifar(layout: Layout, root: Path) -> Dataset:
    path = find_folder(layout.name, root, (layout.folder, URLS[layout.name][0].file))
    read = read_folder if path.is_dir() else read_archive
    loaded = {}
    for file, raw in read(path, (*layout.train, layout.test, layout.meta)).items():
        loaded[file] = load_pickle(raw, f"{path}: {file}")
    names = loaded[layout.meta].get(layout.names)
    if not isinstance(names, list):
        raise RattleError(f"{path}: {layout.meta} has no list {layout.names}")

    def load_images(*files: str) -> Images:
        x, y = [], []
        for file in files:
            images, labels = batch(loaded[file], layout.labels, f"{path}: {file}")
            x.append(images)
            y += labels
        return Images(torch.from_numpy(np.concatenate(x)), torch.tensor(y))

    train, test = load_images(*layout.train), load_images(layout.test)
    return Dataset(name=layout.name, train=train, test=test, classes=tuple(map(as_text, names)))


cifar10, cifar100 = partial(cifar, CIFAR10), partial(cifar, CIFAR100)


def batch(loaded: Plain, labels_key: str, where: str) -> tuple[np.ndarray, list[int]]:
    """uint8 images [k, 3, 32, 32] and k labels of one pickled batch."""
    x, labels = loaded.get("data"), loaded.get(labels_key)
    if not (isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 2 and x.shape[1] == 3072):
        raise RattleError(f"{where}: `data` is not uint8 [k, 3072]")
    if not (isinstance(labels, list) and len(labels) == len(x) and all(isinstance(label, int) for label in labels)):
        raise RattleError(f"{where}: `{labels_key}` is not a list of {len(x)} whole numbers")
    return x.reshape(-1, 3, 32, 32), labels


def read_folder(path: Path, files: Sequence[str]) -> dict[str, bytes]:
    raw = {}
    for file in files:
        if not (path / file).is_file():
            raise RattleError(f"{path} lacks {file}; download it again with `rattle data get`")
        raw[file] = (path / file).read_bytes()
    return raw


def read_archive(path: Path, files: Sequence[str]) -> dict[str, bytes]:
    """The members of the official archive, which `find` knows by its checksum; nothing is unpacked to disk."""
    raw = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = Path(member.name).name
            stream = archive.extractfile(member)
            if stream and name in files:
                raw[name] = stream.read()
    return raw
