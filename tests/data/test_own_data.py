"""A user's own images: .npz files, folders of pictures and the hub."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rattle.data.registry import Data
from rattle.errors import RattleError

DRAW = np.random.default_rng(0)
X, Y = DRAW.integers(0, 256, (20, 8, 6, 3), dtype=np.uint8), np.arange(20) % 4


def load(tmp_path: Path, **arrays: Any):
    np.savez(tmp_path / "set.npz", **arrays)
    return Data(name=str(tmp_path / "set.npz"), val_size=0).load()


@pytest.mark.parametrize(
    "x",
    [X, X.transpose(0, 3, 1, 2), np.asfortranarray(X), X.astype(np.int64), (X / 255).astype(np.float16), X / 255],
    ids=["NHWC", "NCHW", "Fortran order", "int64", "float16 k/255", "float64 k/255"],
)
def test_every_layout_and_lossless_type_gives_the_same_uint8_images(tmp_path: Path, x: np.ndarray) -> None:
    data = load(tmp_path, x_train=x, y_train=Y, x_test=x, y_test=Y[:, None])
    assert (data.train.x.numpy() == X.transpose(0, 3, 1, 2)).all()
    assert data.test.y.tolist() == Y.tolist()
    assert data.classes == ("0", "1", "2", "3")


def test_grey_images_get_a_channel_and_classes_their_names(tmp_path: Path) -> None:
    data = load(tmp_path, x_test=X[..., 0], y_test=Y, classes=["ant", "bee", "cat", "dog"])
    assert data.test.shape == (20, 1, 8, 6)
    assert data.classes == ("ant", "bee", "cat", "dog")
    assert len(data.train) == 0


def test_x_and_y_alone_are_split_by_seed(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", x=X, y=Y)
    a, b, c = (Data(name=str(tmp_path / "set.npz"), val_size=0, split_seed=seed).load() for seed in (0, 0, 1))
    assert (len(a.train), a.test.y.bincount().tolist()) == (16, [1, 1, 1, 1])
    assert a.test.x.equal(b.test.x)
    assert not a.test.x.equal(c.test.x)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x_train": X, "y_train": Y}, "holds x_train, y_train;"),
        ({"x_test": X, "y_test": Y.astype(str)}, r"labels as text: .*np\.unique"),
        ({"x_test": X, "y_test": Y.astype(object)}, "Object arrays"),
        ({"x_test": X, "y_test": Y / 2}, "should be whole numbers"),
        ({"x_test": X, "y_test": Y[:7]}, "has 20 images, but there are 7 labels"),
        ({"x_test": X, "y_test": Y - 1}, "labels run from -1 to 2"),
        ({"x_test": X, "y_test": Y, "classes": ["a", "b"]}, "but there are 2 classes"),
        ({"x_test": X * 1.0, "y_test": Y}, "holds float64 from 0 to 255"),
        ({"x_test": DRAW.random((20, 8, 6, 3)), "y_test": Y}, "which uint8 would change"),
        ({"x_test": np.full((20, 8, 6, 3), np.nan), "y_test": Y}, "holds float64 from nan"),
        ({"x_test": X > 9, "y_test": Y}, "is bool; images should be uint8"),
        ({"x_test": X.reshape(20, -1), "y_test": Y}, r"is \[20, 144\]; images should be"),
        ({"x_train": X[:, :4], "y_train": Y, "x_test": X, "y_test": Y}, r"training images are \[3, 4, 6\]"),
    ],
)
def test_arrays_that_are_not_images_and_labels_are_refused(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(RattleError, match=words):
        load(tmp_path, **arrays)


@pytest.mark.parametrize("kept", [0, 1000, 3000])
@pytest.mark.parametrize("rest", [b"", b"?"])
def test_a_damaged_npz_is_refused(tmp_path: Path, kept: int, rest: bytes) -> None:
    path = tmp_path / "set.npz"
    np.savez(path, x=X, y=Y)
    raw = path.read_bytes()
    path.write_bytes(raw[:kept] + rest + raw[kept + 1 :] * len(rest))
    with pytest.raises(RattleError, match="truncated or damaged"):
        Data(name=str(path)).load()


def test_an_array_that_unpacks_to_far_more_than_the_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "set.npz"
    np.savez_compressed(path, x_test=np.zeros((2000, 8, 8, 3), np.uint8), y_test=np.arange(2000) % 4)
    assert len(Data(name=str(path)).load().test) == 2000
    monkeypatch.setattr("rattle.data.files.LARGEST_READ", 100_000)
    monkeypatch.setattr("numpy.lib.format.read_array", None)
    with pytest.raises(RattleError, match="x_test would unpack to 384,128 bytes"):
        Data(name=str(path)).load()


def test_a_header_that_promises_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    for name, array in (("x", X), ("y", Y)):
        np.save(tmp_path / f"{name}.npy", array)
    raw = (tmp_path / "x.npy").read_bytes().replace(b"(20, 8, 6, 3)", b"(99, 8, 6, 3)")
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("x_test.npy", raw)
        archive.write(tmp_path / "y.npy", "y_test.npy")
    with pytest.raises(RattleError, match="truncated or damaged"):
        Data(name=str(tmp_path / "set.npz")).load()


def paint(path: Path, level: int = 0, *, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level if mode != "RGB" else (level, 0, 9)).save(path)


def test_train_and_test_folders_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for half in ("train", "test"):
        for label, name in enumerate(("ant", "bee")):
            for i in range(3):
                paint(tmp_path / half / name / f"{i}.png", 10 * label + i)
    paint(tmp_path / "train" / "bee" / "deeper" / "3.jpeg", 255)
    (tmp_path / "train" / "bee" / "notes.txt").write_text("not a picture")
    data = Data(name=str(tmp_path), val_size=0).load()
    assert data.classes == ("ant", "bee")
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.test.shape == (6, 3, 5, 6)
    assert data.test.x[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]


def test_one_folder_is_split_by_seed_and_grey_pictures_stay_grey(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        for i in range(5):
            paint(tmp_path / name / f"{i}.png", i, mode="L")
    data = Data(name=str(tmp_path), val_size=0).load()
    assert (len(data.train), data.test.y.tolist()) == (8, [0, 1])
    assert data.channels == 1
    paint(tmp_path / "bee" / "9.png", 1)
    assert Data(name=str(tmp_path)).load().channels == 3


def test_pictures_of_unequal_size_are_refused_by_name_or_resized(tmp_path: Path) -> None:
    paint(tmp_path / "ant" / "1.png", 7)
    paint(tmp_path / "bee" / "odd.png", 7, size=(9, 9))
    with pytest.raises(RattleError, match=r"odd\.png is 9x9 and .*1\.png is 6x5: .* set data\.resize"):
        Data(name=str(tmp_path)).load()
    data = Data(name=str(tmp_path), resize=4, val_size=0).load()
    assert data.test.shape == (1, 3, 4, 4)
    assert (data.test.x[:, 0] == 7).all()


def test_a_folder_that_is_not_one_of_class_folders_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="holds no class folders"):
        Data(name=str(tmp_path)).load()
    paint(tmp_path / "train" / "ant" / "1.png")
    with pytest.raises(RattleError, match="has no test/ beside train/"):
        Data(name=str(tmp_path)).load()
    paint(tmp_path / "test" / "ent" / "1.png")
    with pytest.raises(RattleError, match="unknown class folder 'ent'; did you mean 'ant'"):
        Data(name=str(tmp_path)).load()
    (tmp_path / "train" / "ent").mkdir()
    with pytest.raises(RattleError, match=r"ent holds no \.png"):
        Data(name=str(tmp_path)).load()


def test_the_hub_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RattleError, match=r"hub:owner/name needs the package `datasets`: pip install .*\[hub\]"):
        Data(name="hub:owner/name").load()


class Split:
    """As much of a split of the `datasets` package as the reader uses."""

    def __init__(self, pixels: np.ndarray, labels: list[Any], **features: Any) -> None:
        from PIL import Image

        self.columns = {"image": [Image.fromarray(x) for x in pixels], "label": labels}
        self.features = {name: type(kind, (), values)() for name, (kind, values) in features.items()}
        self._fingerprint = "made for a test"

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, key: int | str) -> Any:
        return self.columns[key] if isinstance(key, str) else {name: v[key] for name, v in self.columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))


IMAGE, CLASS, TEXT = ("Image", {}), ("ClassLabel", {"names": ["ant", "bee"]}), ("Value", {})


def serve(monkeypatch: pytest.MonkeyPatch, **splits: Split) -> Data:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda path, config: splits))
    return Data(name="hub:owner/name", val_size=0)


@pytest.mark.parametrize("label", [CLASS, TEXT], ids=["ClassLabel", "text labels"])
def test_a_hub_s_splits_become_uint8_images(monkeypatch: pytest.MonkeyPatch, label: Any) -> None:
    y = [0, 1, 0, 1, 1, 1]
    labels = y if label is CLASS else [("ant", "bee")[i] for i in y]
    train, test = (Split(X[part], labels, image=IMAGE, label=label) for part in (slice(6), slice(6, 12)))
    data = serve(monkeypatch, train=train, validation=test).load()
    assert data.classes == ("ant", "bee")
    assert (data.test.x.numpy() == X[6:12].transpose(0, 3, 1, 2)).all()
    assert data.train.y.tolist() == y
    alone = serve(monkeypatch, train=train).load()
    assert (len(alone.train), len(alone.test)) == (5, 1)


def test_hub_images_that_do_not_fit_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Split(X[:6], [0, 1] * 3, image=IMAGE, label=CLASS)
    whole.columns["image"][4] = whole.columns["image"][4].resize((3, 3))
    with pytest.raises(RattleError, match=r"image 4 is 3x3 and .*image 0 is 6x8: .* set data\.resize"):
        serve(monkeypatch, train=whole).load()
    assert replace(serve(monkeypatch, train=whole), resize=4).load().train.shape[1:] == (3, 4, 4)
    texts = (Split(X[:4], [*names] * 2, image=IMAGE, label=TEXT) for names in (("ant", "bee"), ("ant", "cow")))
    with pytest.raises(RattleError, match="split test has the class 'cow', which the training split has not"):
        serve(monkeypatch, train=next(texts), test=next(texts)).load()


@pytest.fixture
def offline_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub-cache")
    datasets.disable_progress_bars()
    return datasets


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # not ours
def test_hub_datasets_become_uint8_images(tmp_path: Path, offline_hub: Any) -> None:
    from PIL import Image

    for split in ("train", "test"):
        for i, x in enumerate(X[:6]):
            file = tmp_path / "repo" / split / ("ant", "bee")[i % 2] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(file)
    data = Data(name=f"hub:{tmp_path / 'repo'}", root=str(tmp_path), val_size=0).load()
    assert data.classes == ("ant", "bee")
    assert (data.train.x.numpy() == X[[0, 2, 4, 1, 3, 5]].transpose(0, 3, 1, 2)).all()  # class by class
    assert data.test.y.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_hub_name_that_is_not_cached_is_an_error_offline(offline_hub: Any) -> None:
    with pytest.raises(RattleError, match="hub:owner/no-such-set is neither in the local cache nor reachable"):
        Data(name="hub:owner/no-such-set").load()
