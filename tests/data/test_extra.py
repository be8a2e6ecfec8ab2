"""Extra and generated images: how a file of them is read, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rattle.data import Dataset, Images
from rattle.data.registry import Data
from rattle.errors import RattleError

DRAW = np.random.default_rng(0)
X, Y = DRAW.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), np.arange(20) % 4
OWN = Images(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4))
DATA = Dataset(name="own", train=OWN, test=OWN, classes=("a", "b", "c", "d"))


def load(tmp_path: Path, settings: dict[str, Any] | None = None, **arrays: Any) -> Images:
    np.savez(tmp_path / "extra.npz", **arrays)
    data = Data(extra=str(tmp_path / "extra.npz"), root=str(tmp_path), **(settings or {}))
    found = data.load_extra(DATA)
    assert found is not None
    return found


@pytest.mark.parametrize("keys", [("image", "label"), ("x_train", "y_train"), ("x", "y")])
def test_the_fields_names_and_ours_are_read(tmp_path: Path, keys: tuple[str, str]) -> None:
    images = load(tmp_path, **dict(zip(keys, (X, Y[:, None]), strict=True)), other=np.zeros(3))
    assert torch.equal(images.x, torch.from_numpy(X.transpose(0, 3, 1, 2)))
    assert images.y.tolist() == Y.tolist()


def test_many_images_are_mapped_and_never_whole_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rattle.data.npz.LARGEST_READ", X.nbytes - 1)
    monkeypatch.setattr("rattle.data.npz.to_uint8", None)  # nothing is read as a whole
    images = load(tmp_path, image=X, label=Y)
    assert torch.equal(images[torch.tensor([3, 3, 7])].x, torch.from_numpy(X.transpose(0, 3, 1, 2))[[3, 3, 7]])


def test_extra_images_are_scaled_as_the_others_are(tmp_path: Path) -> None:
    images = load(tmp_path, {"resize": 8}, image=np.repeat(np.repeat(X, 2, 1), 2, 2), label=Y)
    assert images.shape == (20, 3, 8, 8)


def test_a_dataset_is_loaded_without_the_extra_images() -> None:
    assert len(Data(extra="gone.npz").load().train) > 0  # evaluations, elsewhere, need no such file


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"image": X, "labels": Y},
            "holds image, labels; extra images should be under image and label, or under x and y",
        ),
        ({"image": X[:, :, :4], "label": Y}, r"extra images are \[3, 8, 4\], those of own \[3, 8, 8\]"),
        ({"image": X[:0], "label": Y[:0]}, r"label should be whole numbers \[n\], not int64 \[0\]"),
        ({"image": X, "label": Y + 1}, "labels run from 1 to 4, but there are 4 classes"),
        ({"image": X, "label": Y - 1}, "labels run from -1 to 2, but there are 4 classes"),
        ({"image": X, "label": np.ones((20, 4))}, r"label should be whole numbers \[n\], not float64 \[20, 4\]"),
        ({"image": X, "label": Y.astype(object)}, "Object arrays"),
    ],
)
def test_a_file_that_cannot_be_trained_on_is_refused_in_a_sentence(
    tmp_path: Path, arrays: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RattleError, match=sentence):
        load(tmp_path, **arrays)


def test_a_missing_or_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK")
    for name, sentence in {
        "gone.npz": "there is no file of extra images at .*gone.npz",
        "ti_500K.pickle": "data.extra takes a .npz file, such as np.savez writes with image= and label=, got ",
        "broken.npz": "broken.npz is truncated or damaged",
    }.items():
        with pytest.raises(RattleError, match=sentence):
            Data(extra=str(tmp_path / name)).load_extra(DATA)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.3, 70.0, float("nan")])
def test_a_fraction_outside_zero_and_one_is_refused(fraction: float) -> None:
    with pytest.raises(RattleError, match=f"^data.extra_fraction .* got {fraction}$"):
        Data(extra="extra.npz", extra_fraction=fraction)


def test_a_minibatch_has_its_share_rounded_down_and_some_of_each() -> None:
    data = Data(extra="extra.npz")
    assert [data.extra_count(batch) for batch in (512, 128, 10)] == [358, 89, 7]
    assert replace(data, extra_fraction=0.29).extra_count(100) == 29
    assert Data().extra_count(128) == 0
    with pytest.raises(RattleError, match=r"^data.extra-fraction 0.01 of a minibatch of 16 is 0 extra images"):
        replace(data, extra_fraction=0.01).extra_count(16)
    with pytest.raises(RattleError, match=r"^data.extra-fraction 0.7 of a minibatch of 1 is 0 extra images"):
        data.extra_count(1)
