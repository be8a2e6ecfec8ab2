"""Image datasets of the Hugging Face hub, through the `datasets` package (extra `hub`) and its offline cache."""

from contextlib import nullcontext
from typing import Any

import torch

from rattle.data import pictures
from rattle.data.dataset import Dataset, Images, train_test_split
from rattle.errors import RattleError, first_line


def hub(name: str, seed: int, resize: int | None = None) -> Dataset:
    """`owner/name` or `owner/name:config`: its splits train and test (or validation); train alone is split by seed."""
    splits = fetch_rows(name)
    if "train" not in splits:
        raise RattleError(f"hub:{name} has no split called train, only {', '.join(splits)}")
    image, label = find_columns(name, splits["train"])
    names = getattr(splits["train"].features[label], "names", None)  # of a ClassLabel; else the values themselves
    classes = tuple(map(str, names or sorted(set(splits["train"][label]))))

    def part(key: str) -> Images:
        split, where = splits[key], f"hub:{name}, split {key}"
        y = split[label]
        if not hasattr(split.features[label], "names"):  # a ClassLabel has numbers
            for value in y:
                if str(value) not in classes:
                    raise RattleError(f"{where} has the class {value!r}, which the training split has not")
            y = [classes.index(str(value)) for value in y]
        names = [f"{where}, image {i}" for i in range(len(split))]
        x = pictures.load_all(names, lambda i: nullcontext(split[i][image]), resize)
        return Images(torch.from_numpy(x), torch.tensor(y))

    for test in ("test", "validation", "valid"):
        if test in splits:
            return Dataset(name=name, train=part("train"), test=part(test), classes=classes)
    return train_test_split(name, part("train"), classes, seed)


def fetch_rows(name: str) -> Any:
    """The splits by name; downloads only what the cache of `datasets` lacks, and never runs a dataset's own code."""
    try:
        import datasets
    except ImportError as error:
        raise RattleError(f"hub:{name} needs the package `datasets`: pip install 'rattle-robust[hub]'") from error
    path, _, config = name.partition(":")
    try:
        return datasets.load_dataset(path, config or None)
    except Exception as error:  # offline, misspelt, gated, no dataset: each raises its own kind
        raise RattleError(
            f"hub:{name} is neither in the local cache nor reachable, or is no image dataset: {first_line(error)}"
        ) from error


def find_columns(name: str, split: Any) -> tuple[str, str]:
    """The names of the image column and of the label column."""
    kinds = {key: type(feature).__name__ for key, feature in split.features.items()}
    images = [key for key, kind in kinds.items() if kind == "Image"]
    labels = [key for key, kind in kinds.items() if kind == "ClassLabel"]
    labels += [key for key in ("label", "labels") if key in kinds]
    if not images or not labels:
        raise RattleError(f"hub:{name} has no image column and label column, only {kinds}")
    return images[0], labels[0]
