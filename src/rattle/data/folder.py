"""Folders of PNG or JPEG pictures, one sub-folder a class: read into memory, or decoded on the fly.

train/CLASS/*.jpg beside test/ (or val/, validation/); or CLASS/*.jpg alone: a fifth becomes the test part.
"""

import glob
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rattle.data import pictures
from rattle.data.dataset import Dataset, Images, Names, train_test_split
from rattle.data.decode import PictureFiles, Pictures
from rattle.errors import RattleError, unknown

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")
TEST = ("test", "val", "validation")
RESIZE = 8 / 7  # of the shorter side to the side of a crop: 256 to 224
Load = Callable[[Path, Names], Images]  # (folder of a part, its classes) -> its images


def folder(path: Path, seed: int, resize: int | None = None) -> Dataset:
    """The dataset in a folder, its pictures in memory."""
    return read_splits(path, seed, partial(read_pictures, resize=resize))


def decoded_folder(path: Path, seed: int, *, crop: int, resize: int | None, workers: int | None) -> Dataset:
    """The dataset in a folder, its pictures decoded on the fly; the settings are those of `Data`."""

    def load(part: Path, classes: Names) -> Images:
        names, labels = list_pictures(part, classes)
        encoded = np.array([os.fsencode(name) for name in names])
        files = PictureFiles(part, encoded, crop, resize or round(RESIZE * crop))
        return Images(Pictures(files, workers), torch.tensor(labels))

    return read_splits(path, seed, load)


def read_splits(path: Path, seed: int, load: Load) -> Dataset:
    """Classes are the sub-folders of the training part in alphabetical order; a set without parts is split by seed."""
    train = path / "train"
    tests = [path / name for name in TEST if (path / name).is_dir()]
    if not train.is_dir() and not tests:
        classes = class_names(path)
        return train_test_split(path.name, load(path, classes), classes, seed)
    if not train.is_dir():
        raise RattleError(f"{path} has no train/ beside {tests[0].name}/")
    if not tests:
        raise RattleError(f"{path} has no test/ beside train/, nor val/ or validation/")
    test = tests[0]
    classes = class_names(train)
    for name in class_names(test):
        if name not in classes:
            raise RattleError(f"{test}: {unknown('class folder', name, classes)}; train/ has no such class")
    return Dataset(name=path.name, train=load(train, classes), test=load(test, classes), classes=classes)


def class_names(path: Path) -> Names:
    names = tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not names:
        raise RattleError(f"{path} holds no class folders; it should hold one folder of PNG or JPEG images per class")
    return names


def list_pictures(path: Path, classes: Names) -> tuple[list[str], list[int]]:
    """The pictures of every class at any depth, as names inside path, and their labels; hidden files are left out."""
    names = []
    labels = []
    for label, name in enumerate(classes):
        every = glob.glob(f"{glob.escape(name)}/**/*", root_dir=path, recursive=True)
        found = sorted(file for file in every if file.lower().endswith(PICTURE_SUFFIXES))
        if not found and (path / name).is_dir():
            raise RattleError(f"{path / name} holds no {', '.join(PICTURE_SUFFIXES)} file")
        names += found
        labels += [label] * len(found)
    return names, labels


def read_pictures(path: Path, classes: Names, resize: int | None) -> Images:
    """All pictures in memory."""
    names, labels = list_pictures(path, classes)
    files = [path / name for name in names]
    x = pictures.load_all(files, lambda i: pictures.open_picture(files[i]), resize)
    return Images(torch.from_numpy(x), torch.tensor(labels))
