"""A folder of PNG or JPEG images, one sub-folder per class: train/ and test/, or one set that is split by seed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from rattle.data import pictures
from rattle.data.dataset import Dataset, Images, train_test_split
from rattle.data.mmap_cache import MmapCache, Shape, cache_key
from rattle.errors import RattleError, unknown

SUFFIXES = (".png", ".jpg", ".jpeg")


def folder(path: Path, cache: MmapCache, seed: int, resize: int | None = None) -> Dataset:
    """Classes are the sub-folders of the training part in alphabetical order; images may lie deeper inside them."""
    train, test = path / "train", path / "test"
    if not train.is_dir() and not test.is_dir():
        classes = class_names(path)
        return train_test_split(path.name, load_images(path, classes, cache, resize), classes, seed)
    for part, other in ((train, test), (test, train)):
        if not part.is_dir():
            raise RattleError(f"{path} has no {part.name}/ beside {other.name}/")
    classes = class_names(train)
    for name in class_names(test):
        if name not in classes:
            raise RattleError(f"{test}: {unknown('class folder', name, classes)}; train/ has no such class")
    parts = {part.name: load_images(part, classes, cache, resize) for part in (train, test)}
    return Dataset(name=path.name, classes=classes, **parts)


def class_names(path: Path) -> tuple[str, ...]:
    names = tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not names:
        raise RattleError(f"{path} holds no class folders; it should hold one folder of PNG or JPEG images per class")
    return names


def list_files(path: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The image files of every class, and their labels."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(p for p in (path / name).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not found and (path / name).is_dir():
            raise RattleError(f"{path / name} holds no {', '.join(SUFFIXES)} file")
        files += found
        labels += [label] * len(found)
    return files, labels


def load_images(path: Path, classes: tuple[str, ...], cache: MmapCache, resize: int | None) -> Images:
    """Decoded one by one straight into the cache: a large folder is never whole in memory."""
    files, labels = list_files(path, classes)
    y = torch.tensor(labels, dtype=torch.int64)
    key = cache_key("folder", str(path.resolve()), resize, *files)
    if cache.path(key).exists():  # written from these very files before: their headers need not be read again
        return cache.open(key, y)
    shape = common_shape(files, resize)
    return cache.images(shape, decode(files, shape, resize), y, key=key)


def common_shape(files: list[Path], resize: int | None) -> Shape:
    """The shape of all images from their headers; three channels if any image has colour."""
    with pictures.open_picture(files[0]) as first:
        width, height = (resize, resize) if resize else first.size
    channels = 1
    for file in files:
        with pictures.open_picture(file) as picture:
            size = None if resize else (width, height)
            channels = max(channels, pictures.count_channels(picture, file, size, files[0]))
    return len(files), channels, height, width


def decode(files: list[Path], shape: Shape, resize: int | None) -> Iterator[np.ndarray]:
    for file in files:
        with pictures.open_picture(file) as picture:
            yield pictures.to_array(picture, shape[1], resize)[None]
