"""A folder of class sub-folders of PNG or JPEG images: train/ and test/ beside each other, or one, split by seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from rattle.data import pictures
from rattle.data.dataset import Dataset, Images, train_test_split
from rattle.data.mmap_cache import MmapCache, Shape, cache_key, stamp
from rattle.errors import RattleError, unknown

SUFFIXES = (".png", ".jpg", ".jpeg")
Labelled = list[tuple[Path, int]]


def folder(path: Path, cache: MmapCache, seed: int, resize: int | None = None) -> Dataset:
    """Classes are the sub-folders of the training part, in alphabetical order; pictures may lie deeper in them."""
    halves = [path / "train", path / "test"]
    if not any(half.is_dir() for half in halves):
        classes = class_names(path)
        return train_test_split(path.name, load_images(files_of(path, classes), path, cache, resize), classes, seed)
    for half in halves:
        if not half.is_dir():
            raise RattleError(f"{path} has no {half.name}/ beside {'test' if half.name == 'train' else 'train'}/")
    classes = class_names(halves[0])
    for name in class_names(halves[1]):
        if name not in classes:
            raise RattleError(f"{halves[1]}: {unknown('class folder', name, classes)}; train/ has no such class")
    train, test = (load_images(files_of(half, classes), half, cache, resize) for half in halves)
    return Dataset(name=path.name, train=train, test=test, classes=classes)


def class_names(path: Path) -> tuple[str, ...]:
    names = tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not names:
        raise RattleError(f"{path} holds no class folders; it should hold one folder of PNG or JPEG images per class")
    return names


def files_of(path: Path, classes: tuple[str, ...]) -> Labelled:
    found: Labelled = []
    for label, name in enumerate(classes):
        inside = sorted(p for p in (path / name).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not inside and (path / name).is_dir():
            raise RattleError(f"{path / name} holds no {', '.join(SUFFIXES)} file")
        found += [(file, label) for file in inside]
    return found


def load_images(files: Labelled, path: Path, cache: MmapCache, resize: int | None) -> Images:
    """Decoded one by one, straight to where they are kept: a large folder is never whole in memory."""
    y = torch.tensor([label for _, label in files], dtype=torch.int64)
    key = cache_key("folder", path.resolve(), resize, *(stamp(file) for file, _ in files))
    if cache.path(key).exists():  # written before, from these very files: no need to look into them again
        return cache.open(key, y)
    shape = survey(files, resize)
    return cache.images(shape, decoded(files, shape, resize), y, key=key)


def survey(files: Labelled, resize: int | None) -> Shape:
    """The shape of all, from the headers; colour when one has colour."""
    first, size, count = files[0][0], (0, 0), 1
    for file, _ in files:
        with pictures.opened(file) as picture:
            size = picture.size if file is first else size
            count = max(count, pictures.channels(picture, file))
            if resize is None:
                pictures.check_shape(picture, size, file, first)
    width, height = (resize, resize) if resize else size
    return len(files), count, height, width


def decoded(files: Labelled, shape: Shape, resize: int | None) -> Iterator[np.ndarray]:
    for file, _ in files:
        with pictures.opened(file) as picture:
            yield pictures.to_array(picture, shape[1], resize)[None]
