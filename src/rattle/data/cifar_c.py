"""CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich 2019): a folder of KIND.npy and labels.npy, five severities."""

import warnings
from pathlib import Path

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.errors import RattleError

SEVERITIES = 5  # one after the other in each file, all of the same images
CLASSES = {"cifar10-c": 10, "cifar100-c": 100}


def read_corruptions(path: Path) -> dict[str, Images]:
    """The images of each kind, mapped from its file; path: the folder, or the file of one kind in it."""
    folder = path if path.is_dir() else path.parent
    files = sorted(folder.glob("*.npy")) if path.is_dir() else [path]
    kinds = [file for file in files if file.name != "labels.npy"]
    if not kinds or not kinds[0].is_file():
        raise RattleError(f"{path} has no files of corruptions: KIND.npy, uint8 [50000, 32, 32, 3], and labels.npy")
    y = read_array(folder / "labels.npy")
    if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y) or len(y) % SEVERITIES:
        raise RattleError(
            f"{folder / 'labels.npy'} is {y.dtype} {list(y.shape)}, not {SEVERITIES} times n whole numbers"
        )
    labels, found = torch.from_numpy(y.astype(np.int64)), {}
    for file in kinds:
        x = read_array(file)
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] != 3 or len(x) != len(y):
            raise RattleError(f"{file} is {x.dtype} {list(x.shape)}, not uint8 [{len(y)}, side, side, 3] as its labels")
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that the array is not writable
            found[file.stem] = Images(torch.from_numpy(x).permute(0, 3, 1, 2), labels)
    return found


def read_array(path: Path) -> np.ndarray:
    """An array mapped from its file; nothing in it can run."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise RattleError(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError) as reason:
        raise RattleError(f"{path} is no array that numpy saved: {reason}") from reason


def cifar_c(name: str) -> Dataset:
    """The test part of `cifar10-c:FOLDER`, all kinds in order, or of one kind, `cifar10-c:FOLDER/fog.npy`."""
    dataset, _, where = name.partition(":")
    kinds = read_corruptions(Path(where).expanduser())
    test = next(iter(kinds.values()))  # one kind stays mapped
    if len(kinds) > 1:
        test = Images(torch.cat([part.x for part in kinds.values()]), torch.cat([part.y for part in kinds.values()]))
    classes = tuple(map(str, range(CLASSES[dataset])))
    return Dataset(name=name, train=Images(test.x[:0], test.y[:0]), test=test, classes=classes)
