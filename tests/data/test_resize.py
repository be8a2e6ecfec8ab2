"""data.resize scales the images of every source alike."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from rattle.data.registry import Data

X, Y = np.random.default_rng(0).integers(0, 256, (10, 8, 6, 3), dtype=np.uint8), np.arange(10) % 2


def save(folder: Path, x: np.ndarray = X) -> str:
    np.savez(folder / "set.npz", x_train=x, y_train=Y, x_test=x, y_test=Y)
    return str(folder / "set.npz")


def test_arrays_are_scaled_as_the_pictures_of_a_folder_are(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for i, (x, y) in enumerate(zip(X, Y, strict=True)):
            (tmp_path / "pictures" / part / str(y)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(tmp_path / "pictures" / part / str(y) / f"{i}.png")
    pictures = Data(name=str(tmp_path / "pictures"), resize=5).source()
    arrays = Data(name=save(tmp_path), resize=5).source()
    order = torch.tensor([*range(0, 10, 2), *range(1, 10, 2)])  # a folder's images are sorted by class
    assert arrays.test.shape == (10, 3, 5, 5)
    assert arrays.train.x[order].equal(pictures.train.x)
    assert arrays.train.x.dtype == torch.uint8


def test_built_in_sources_are_scaled_and_split_as_before() -> None:
    plain, large = Data(name="digits").load(), Data(name="digits", resize=16).load()
    assert large.test.shape == (500, 1, 16, 16)
    assert large.val is not None
    assert large.val.shape[2:] == (16, 16)
    assert large.train.y.equal(plain.train.y)
    assert Data(name="digits", resize=8).load().test.x.equal(plain.test.x)
