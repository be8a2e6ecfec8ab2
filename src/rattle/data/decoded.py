"""Datasets that are decoded on the fly: folders of class folders, or of tar shards, as large as ImageNet.

Parts are folders or the beginnings of shards' names: train, and test, val or validation. A listing of the shards is
kept in the cache, pictures are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images, train_test_split
from rattle.data.decode import Framing, Pictures
from rattle.data.files import readable
from rattle.data.folder import class_names
from rattle.data.records import Records, folder_records
from rattle.data.shards import shard_records
from rattle.errors import RattleError, unknown

TEST = ("test", "val", "validation")
NAMES = "classes.txt"  # beside the shards: the name of class i on line i
RESIZE = 8 / 7  # of the shorter side to the side of a crop: 256 to 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """How pictures are decoded on the fly; the settings are explained at `Data`."""

    crop: int
    resize: int | None
    workers: int | None
    cache: Path  # the folder for the listings of shards

    def images(self, records: Records, labels: np.ndarray) -> Images:
        framing = Framing(self.crop, self.resize or round(RESIZE * self.crop))
        return Images(Pictures(records, framing, self.workers), torch.from_numpy(labels.astype(np.int64)), mapped=True)


def decoded(path: Path, decoder: Decoder, seed: int) -> Dataset:
    """The dataset in a folder: of shards if it holds any, else of class folders; without parts, seed draws the test."""
    shards = find_shards(path)
    if not any(shards.values()) and not any((path / name).is_dir() for name in ("train", *TEST)):
        classes = class_names(path)
        return train_test_split(path.name, decoder.images(*folder_records(path, classes)), classes, seed)
    parts, classes = from_shards(path, shards, decoder) if any(shards.values()) else from_folders(path, decoder)
    return Dataset(name=path.name, classes=classes, **parts)


def from_folders(path: Path, decoder: Decoder) -> tuple[dict[str, Images], tuple[str, ...]]:
    """train/CLASS/*.jpg beside test/CLASS/*.jpg."""
    folders = {
        "train": path / "train",
        "test": next(filter(Path.is_dir, (path / name for name in TEST)), path / "test"),
    }
    for folder in folders.values():
        if not folder.is_dir():
            raise RattleError(f"{path} holds neither {folder.name}/ with class folders nor tar shards of that part")
    classes = class_names(folders["train"])
    for name in class_names(folders["test"]):
        if name not in classes:
            raise RattleError(f"{folders['test']}: {unknown('class folder', name, classes)}; train/ has no such class")
    return {name: decoder.images(*folder_records(folder, classes)) for name, folder in folders.items()}, classes


def find_shards(path: Path) -> dict[str, list[Path]]:
    """The shards of each part: in folders of its name, or with it in their own."""
    with readable(path):
        lying = sorted(path.glob("*.tar"))
        found = {
            part: [*sorted(file for name in names for file in (path / name).glob("*.tar"))]
            or [file for file in lying if any(name in file.stem.lower() for name in names)]
            for part, names in {"train": ("train",), "test": TEST}.items()
        }
    for part, shards in found.items():
        if not shards and (lying or any(found.values())):
            names = " or ".join(("train",) if part == "train" else TEST)
            raise RattleError(f"{path} holds tar shards, but none of the {part} part: {names} in their names or folder")
    return found


def from_shards(
    path: Path, shards: dict[str, list[Path]], decoder: Decoder
) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Numbered classes, or those that are named by the folders inside the shards."""
    listed = {part: shard_records(files, decoder.cache) for part, files in shards.items()}
    classes = shard_classes(path, listed["train"][1])
    parts = {part: decoder.images(records, labels(part, texts, classes)) for part, (records, texts) in listed.items()}
    names = path / NAMES
    return parts, read_names(names, len(classes)) if names.is_file() else classes


def shard_classes(path: Path, texts: np.ndarray) -> tuple[str, ...]:
    """The classes of the training part: numbers from 0 to the largest, or names in alphabetical order."""
    found = [str(text) for text in np.unique(texts)]
    if not all(text.isdecimal() for text in found):
        return tuple(found)
    numbers = sorted(map(int, found))
    if numbers != list(range(len(numbers))):
        gap = next(i for i, number in enumerate(numbers) if i != number)
        raise RattleError(f"{path}: no training picture is of class {gap}, though classes run up to {numbers[-1]}")
    return tuple(map(str, numbers))


def labels(part: str, texts: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """The number of each picture's class."""
    found, codes = np.unique(texts, return_inverse=True)
    number = {name: i for i, name in enumerate(classes)}
    for name in map(str, found):
        if name not in number:
            raise RattleError(f"{part} part: {unknown('class', name, classes)}; no training picture is of it")
    return np.array([number[str(name)] for name in found])[codes]


def read_names(path: Path, count: int) -> tuple[str, ...]:
    """The lines of a file of class names."""
    with readable(path, UnicodeDecodeError):
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    if len(names) != count or not all(names):
        raise RattleError(f"{path} should hold a line for each of the {count} classes, and has {len(names)}")
    return names
