"""CIFAR-10-C's files, refused where they are not as published, and corruptions made of images of one's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rattle.data.corruptions import CORRUPTIONS, corrupt, kinds_for
from rattle.data.registry import Data
from rattle.errors import RattleError

BASE, SIDE = 4, 8  # images that were corrupted


def write_files(folder: Path, kinds: tuple[str, ...] = ("fog", "snow")) -> Path:
    """A small folder in the format of CIFAR-10-C: the first pixel of an image is its severity."""
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(np.arange(BASE, dtype=np.uint8), 5))
    for number, kind in enumerate(kinds):
        x = np.full((5 * BASE, SIDE, SIDE, 3), 10 * number, np.uint8)
        x[:, 0, 0, 0] = np.repeat(np.arange(1, 6), BASE)
        np.save(folder / f"{kind}.npy", x)
    return folder


def test_a_folder_of_corruptions_is_a_test_part(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "c")
    data = Data(name=f"cifar10-c:{folder}").source()
    assert (list(data.test.shape), len(data.train), len(data.classes)) == ([40, 3, SIDE, SIDE], 0, 10)
    assert (
        data.test.x[:, 0, 0, 0].tolist()
        == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5] * 4
    )
    one = Data(name=f"cifar100-c:{folder / 'snow.npy'}").source()
    assert (len(one.test), len(one.classes), int(one.test.x[0, 1, 3, 3])) == (20, 100, 10)


@pytest.mark.parametrize(
    ("file", "array", "what"),
    [
        ("labels.npy", None, "there is no file"),
        ("labels.npy", np.zeros(7, np.uint8), "5 times n whole numbers"),
        ("fog.npy", np.zeros((20, 8, 8), np.uint8), "not uint8"),
        ("fog.npy", np.zeros((20, 8, 8, 3)), "not uint8"),
        ("fog.npy", np.zeros((15, 8, 8, 3), np.uint8), "not uint8"),
        ("fog.npy", np.array([{}]), "no array that numpy saved"),
    ],
)
def test_files_of_another_shape_are_refused(file: str, array: np.ndarray | None, what: str, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "c")
    (folder / file).unlink()
    if array is not None:
        np.save(folder / file, array)
    with pytest.raises(RattleError, match=rf"{file}.* {what}|{what}.*{file}"):
        Data(name=f"cifar10-c:{folder}").source()


def test_a_folder_without_corruptions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="no files of corruptions"):
        Data(name=f"cifar10-c:{tmp_path}").source()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 32])
def test_every_kind_changes_images_more_at_the_last_severity_and_the_same_way_again(side: int, channels: int) -> None:
    smooth = torch.rand(6, channels, 5, 5, generator=torch.Generator().manual_seed(0))
    x = (torch.nn.functional.interpolate(smooth, size=side, mode="bilinear") * 255).byte().numpy()
    index = np.arange(6)
    for kind in kinds_for(channels):
        first, last = corrupt(x, kind, 1, index), corrupt(x, kind, 5, index)
        moved = [np.abs(each.astype(int) - x).mean() for each in (first, last)]
        assert moved[1] > 0.5, kind
        assert moved[1] >= moved[0] or kind == "saturate", kind  # which loses colour first and gains it later
        assert (corrupt(x[2:3], kind, 5, index[2:3]) == last[2:3]).all(), kind  # whatever the others are


def test_noise_has_the_published_size_and_colour_changes_are_those_of_hsv() -> None:
    grey = np.full((1, 3, 64, 64), 128, np.uint8)
    noisy = corrupt(grey, "gaussian_noise", 5, np.arange(1)).astype(float) / 255
    assert noisy.std() == pytest.approx(0.10, rel=0.05)
    salted = corrupt(grey, "impulse_noise", 5, np.arange(1))
    assert np.isin(salted, [0, 255]).mean() == pytest.approx(0.07, abs=0.01)
    shot = corrupt(grey, "shot_noise", 5, np.arange(1)).astype(float) / 255
    assert shot.std() == pytest.approx((128 / 255 / 50) ** 0.5, rel=0.05)
    colour = np.array([200, 100, 50], np.uint8).reshape(1, 3, 1, 1).repeat(8, 2).repeat(8, 3)
    # colorsys.rgb_to_hsv gives (1/18, 3/4, 40/51): value + 0.1, and saturation * 0.3
    assert corrupt(colour, "brightness", 2, np.arange(1))[0, :, 0, 0].tolist() == [225, 112, 56]
    assert corrupt(colour, "saturate", 1, np.arange(1))[0, :, 0, 0].tolist() == [200, 170, 155]


def test_there_are_twelve_kinds() -> None:
    assert len(CORRUPTIONS) == 12
