"""Splits, subsets, batches, streaming and augmentation: what every source has in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from rattle.data import Augment, Dataset, Images, on_device
from rattle.data.dataset import balanced_indices
from rattle.data.digits import stored
from rattle.data.registry import Data, batches
from rattle.errors import RattleError
from rattle.inputs import to_float
from rattle.randomness import ImageStreams


def save_npz(path: Path, n: int = 40, classes: int = 4, save: Any = np.savez) -> str:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (n + 8, 6, 6, 3), dtype=np.uint8)
    y = np.arange(n + 8) % classes
    save(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    return str(path)


labels = st.lists(st.integers(0, 4), min_size=1, max_size=40).map(torch.tensor)


@settings(max_examples=60, deadline=None)
@given(y=labels, seed=st.integers(0, 2**31), share=st.floats(0.01, 1))
def test_a_balanced_subset_is_as_even_as_the_classes_allow(y: torch.Tensor, seed: int, share: float) -> None:
    n = max(1, int(share * len(y)))
    index = balanced_indices(y, n, seed)
    assert len(index.unique()) == len(index) == n
    assert index.equal(index.sort().values)
    assert index.equal(balanced_indices(y, n, seed))
    there, taken = y.bincount(minlength=5), y[index].bincount(minlength=5)
    for label in range(5):
        if taken[label] < there[label]:  # images of this class were left over, so no class got two more than it
            assert taken[label] >= taken.max() - 1


def test_half_of_a_small_class_stays_in_training() -> None:
    y = torch.tensor([0] * 160 + [1] * 160 + [2] * 15)
    images = Images(torch.zeros(len(y), 1, 1, 1), y)
    data = Dataset(name="w", train=images, test=images, classes=tuple("abc")).split(None, 65, seed=0)
    assert data.val is not None
    assert data.val.y.bincount().tolist() == [29, 29, 7]
    assert data.train.y.bincount().tolist() == [131, 131, 8]


@settings(max_examples=30, deadline=None)
@given(y=labels.filter(lambda y: len(y) > 1), seed=st.integers(0, 99))
def test_held_out_images_and_the_rest_are_the_whole(y: torch.Tensor, seed: int) -> None:
    x = torch.arange(len(y), dtype=torch.uint8).view(-1, 1, 1, 1)
    whole = Dataset(name="w", train=Images(x, y), test=Images(x, y), classes=tuple("abcde"))
    data = whole.split(None, len(y) // 2, seed)
    assert data.val is not None
    together = torch.cat([data.train.x, data.val.x]).flatten()
    assert together.sort().values.equal(x.flatten())
    assert y[data.train.x.flatten().long()].equal(data.train.y)


def test_a_tenth_is_held_out_by_default(tmp_path: Path) -> None:
    name = save_npz(tmp_path / "set.npz")
    standard, none, some = (Data(name=name, val_size=size).load() for size in (None, 0, 8))
    assert standard.val is not None
    assert (len(standard.train), len(standard.val)) == (36, 4)
    assert none.val is None
    assert len(none.train) == 40
    assert some.val is not None
    assert some.val.y.bincount().tolist() == [2, 2, 2, 2]


def test_a_training_subset_is_balanced_and_apart_from_what_is_held_out(tmp_path: Path) -> None:
    data = Data(name=save_npz(tmp_path / "set.npz"), train_size=12, val_size=8).load()
    assert data.val is not None
    assert data.train.y.bincount().tolist() == [3, 3, 3, 3]
    held_out = {image.numpy().tobytes() for image in data.val.x}
    assert not any(image.numpy().tobytes() in held_out for image in data.train.x)


def test_the_digits_read_from_their_file_are_those_of_the_package() -> None:
    for found, expected in zip(stored(), load_digits(return_X_y=True), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"val_size": 1297}, "leaves none of the 1297"),
        (
            {"train_size": 1297, "val_size": 1},
            "1296 training images of digits beside 1 held out",
        ),
        ({"name": "cifar01"}, "did you mean 'cifar10'"),
        ({"name": "./nowhere/images.npz"}, r"there is no \.npz file at nowhere/images\.npz"),
        ({"name": "./nowhere/images"}, "folder of class folders at nowhere/images"),
    ],
)
def test_what_cannot_be_loaded_is_refused(settings_: dict[str, str], words: str) -> None:
    with pytest.raises(RattleError, match=words):
        Data(**settings_).load()  # type: ignore[arg-type]


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    first, again, next_epoch = (list(batches(10, 4, seed=1, epoch=epoch)) for epoch in (0, 0, 1))
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert not first[0].equal(next_epoch[0])
    assert len(torch.cat(first).unique()) == 8
    with pytest.raises(RattleError, match="no training images"):
        next(batches(0, 4, seed=0, epoch=0))


def test_balanced_batches_draw_every_class_equally_often() -> None:
    y = torch.tensor([0] * 70 + [2] * 25 + [1] * 5)
    first, again = (torch.cat(list(batches(100, 10, seed=1, epoch=0, balanced=y))) for _ in range(2))
    assert first.equal(again)
    assert y[first].bincount().min() >= 20


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_mapped_set_is_the_same_as_one_in_memory(save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = save_npz(tmp_path / "set.npz", save=save)
    here = Data(name=name, train_size=24).load()
    monkeypatch.setattr("rattle.data.npz.LARGEST_READ", 0)
    mapped = Data(name=name, train_size=24).load()
    for part in ("train", "val", "test"):
        assert getattr(here, part).x.equal(getattr(mapped, part).x)
        assert getattr(here, part).y.equal(getattr(mapped, part).y)


def test_images_move_to_the_device_only_when_they_fit() -> None:
    images = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    assert on_device(images, "cpu") is images
    assert on_device(images, "meta", limit_bytes=15) is images
    moved = on_device(images, "meta", limit_bytes=16)
    assert moved.x.device.type == moved.y.device.type == "meta"


def reference(augment: Augment, x: torch.Tensor, seed: int, index: int) -> torch.Tensor:
    """One image [C, H, W], step by step: pad, crop, flip, cut out."""
    draws = ImageStreams(seed, torch.tensor([index]))
    _, height, width = x.shape
    mirrored = augment.flip and bool(draws.integers(2, 1))
    if augment.pad:
        p = augment.pad
        padded = torch.zeros(x.shape[0], height + 2 * p, width + 2 * p, dtype=x.dtype)
        padded[:, p : p + height, p : p + width] = x
        top, left = draws.integers(2 * p + 1, 2)[0].tolist()
        x = padded[:, top : top + height, left : left + width]
    x = x.flip(2) if mirrored else x.clone()
    if augment.cutout:
        row, column = (draws.uniform(2)[0] * torch.tensor([height, width])).long().tolist()
        top, left, side = row - augment.cutout // 2, column - augment.cutout // 2, augment.cutout
        x[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 0
    return x


@settings(max_examples=40, deadline=None)
@given(
    pad=st.integers(0, 4),
    flip=st.booleans(),
    cutout=st.integers(0, 5),
    shape=st.tuples(st.integers(1, 5), st.sampled_from([1, 3]), st.integers(2, 7), st.integers(2, 7)),
    seed=st.integers(0, 2**40),
)
def test_augmentation_equals_its_reference(
    pad: int, flip: bool, cutout: int, shape: tuple[int, ...], seed: int
) -> None:
    augment = Augment(pad=pad, flip=flip, cutout=cutout)
    x = torch.randint(1, 256, shape, dtype=torch.uint8)
    index = torch.randperm(1000)[: len(x)]
    fast = augment(x, ImageStreams(seed, index))
    assert fast.dtype == torch.uint8
    for i in range(len(x)):
        assert fast[i].equal(reference(augment, x[i], seed, int(index[i])))


def test_floats_are_in_the_unit_interval_and_channels_last() -> None:
    x = to_float(torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 4, 4))
    assert x[0, :, 0, 0].tolist() == pytest.approx([0, 0.2, 1])
    assert x.is_contiguous(memory_format=torch.channels_last)
