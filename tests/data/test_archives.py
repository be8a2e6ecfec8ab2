"""CIFAR, SVHN and MNIST as they lie on disk, whole and broken, out of small generated files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rattle.data.cifar import CIFAR10, CIFAR100, Layout
from rattle.data.files import md5
from rattle.data.pickles import load_pickle
from rattle.data.registry import Data
from rattle.data.sources import URLS, Remote
from rattle.errors import RattleError

Official = Callable[..., None]  # (name, *paths)
PROTOCOL = 3  # the first that Python 3 writes bytes in


def cifar_files(layout: Layout, classes: int) -> dict[str, bytes]:
    draw, files = np.random.default_rng(0), {}
    for file in (*layout.train, layout.test):
        x = draw.integers(0, 256, (classes, 3072), dtype=np.uint8)
        batch = {b"data": x, layout.labels.encode(): list(range(classes)), b"batch_label": b"made for a test"}
        files[file] = pickle.dumps(batch, PROTOCOL)
    names = {layout.names.encode(): [f"class {i}".encode() for i in range(classes)]}
    return {**files, layout.meta: pickle.dumps(names, PROTOCOL)}


def write_folder(root: Path, layout: Layout, files: dict[str, bytes]) -> Path:
    (root / layout.folder).mkdir(parents=True)
    for name, raw in files.items():
        (root / layout.folder / name).write_bytes(raw)
    return root


def write_tar(root: Path, layout: Layout, files: dict[str, bytes]) -> Path:
    path = root / URLS[layout.name][0].file
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in files.items():
            info = tarfile.TarInfo(f"{layout.folder}/{name}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return path


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Official:
    """Lets the checksums of generated files count as those of a dataset."""

    def add(name: str, *paths: Path) -> None:
        remotes = [Remote(f"https://example.org/{path.name}", path.stat().st_size, md5(path)) for path in paths]
        monkeypatch.setitem(URLS, name, tuple(remotes))

    return add


@pytest.mark.parametrize(("layout", "classes"), [(CIFAR10, 10), (CIFAR100, 20)], ids=["cifar10", "cifar100"])
def test_the_archive_and_the_folder_give_the_same_images(
    tmp_path: Path, layout: Layout, classes: int, official: Official
) -> None:
    files = cifar_files(layout, classes)
    (tmp_path / "tar").mkdir()
    official(layout.name, write_tar(tmp_path / "tar", layout, files))
    write_folder(tmp_path / "folder", layout, files)
    packed, unpacked = (
        Data(name=layout.name, root=str(tmp_path / kind), val_size=0).load() for kind in ("tar", "folder")
    )
    assert packed.classes[3] == "class 3"
    assert packed.train.shape == (len(layout.train) * classes, 3, 32, 32)
    assert packed.train.x.equal(unpacked.train.x)
    first = np.random.default_rng(0).integers(0, 256, (classes, 3072), dtype=np.uint8)
    assert packed.train.x[:classes].numpy().reshape(classes, -1).tobytes() == first.tobytes()
    assert packed.test.y.tolist() == list(range(classes))
    assert sorted(p.name for p in (tmp_path / "tar").iterdir()) == [URLS[layout.name][0].file]  # nothing was unpacked


def test_an_archive_without_the_official_checksum_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path, CIFAR10, cifar_files(CIFAR10, 10))
    monkeypatch.setattr(tarfile, "open", None)
    with pytest.raises(RattleError, match=r"cifar-10-python\.tar\.gz .* its MD5 is .*rattle data get cifar10"):
        Data(name="cifar10", root=str(tmp_path)).load()


class Evil:
    """Would run a command when it is unpickled."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("write", [write_folder, write_tar])
def test_a_pickle_that_tries_to_execute_code_cannot(tmp_path: Path, official: Official, write: Callable) -> None:
    trace = tmp_path / "it-ran"
    poison = pickle.dumps({b"data": Evil(os.system, f"touch {trace}"), b"labels": []}, PROTOCOL)
    pickle.loads(poison)  # the ordinary reader would have run it
    assert trace.exists()
    trace.unlink()
    path = write(tmp_path, CIFAR10, {**cifar_files(CIFAR10, 10), "data_batch_2": poison})
    if path.is_file():
        official("cifar10", path)
    with pytest.raises(RattleError, match=r"data_batch_2 is refused: its pickle asks for \w+\.system"):
        Data(name="cifar10", root=str(tmp_path)).load()
    assert not trace.exists()


@pytest.mark.parametrize(
    "value",
    [
        Evil(eval, "1"),
        Evil(getattr, 1, "real"),
        Evil(np.load, "x", None, True),
        np.array([Evil(eval, "1")], dtype=object),
        np.zeros(2, dtype="V4"),
    ],
    ids=["eval", "getattr", "numpy.load", "object array", "void array"],
)
def test_no_other_name_passes_the_unpickler(value: object) -> None:
    with pytest.raises(RattleError, match="is refused"):
        load_pickle(pickle.dumps({"data": value}, PROTOCOL), "batch")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "mnist", "fashion-mnist"])
def test_missing_files_say_what_was_looked_for_where_and_how_to_get_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(RattleError) as caught:
        Data(name=name, root=str(tmp_path)).load()
    assert str(tmp_path / name) in str(caught.value)
    assert f"rattle data get {name} --root {tmp_path}" in str(caught.value)


def test_the_root_comes_from_the_environment_when_it_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATTLE_DATA", str(tmp_path))
    write_folder(tmp_path / "cifar10", CIFAR10, cifar_files(CIFAR10, 10))
    assert len(Data(name="cifar10").load().test) == 10


@pytest.fixture
def svhn(tmp_path: Path, official: Official) -> np.ndarray:
    """SVHN's two files with twelve images, whose checksums count as official; returns X [32, 32, 3, 12]."""
    from scipy.io import savemat

    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
    y = np.array([10, *range(1, 12)], dtype=np.uint8)[:, None].clip(1, 10)
    paths = [tmp_path / f"{part}_32x32.mat" for part in ("train", "test")]
    for path in paths:
        savemat(path, {"X": x, "y": y}, do_compression=True)
    official("svhn", *paths)
    return x


def test_svhn_calls_its_label_ten_zero(tmp_path: Path, svhn: np.ndarray) -> None:
    data = Data(name="svhn", root=str(tmp_path), val_size=0).load()
    assert data.test.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0]
    assert (data.test.x[5].numpy() == svhn[..., 5].transpose(2, 0, 1)).all()


def test_a_mat_file_without_a_known_checksum_never_reaches_the_parser(
    tmp_path: Path, svhn: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:-40])
    monkeypatch.setattr("scipy.io.loadmat", None)
    with pytest.raises(RattleError, match=r"train_32x32\.mat .*rattle data get svhn"):
        Data(name="svhn", root=str(tmp_path)).load()


def write_idx(folder: Path, x: np.ndarray) -> None:
    """The images and their numbers as labels, for training and test."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        for kind, a in (("images-idx3", x), ("labels-idx1", np.arange(len(x), dtype=np.uint8))):
            raw = struct.pack(f">{1 + a.ndim}I", 0x0800 + a.ndim, *a.shape) + a.tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(raw)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("name", "where"), [("mnist", "mnist"), ("fashion-mnist", "FashionMNIST/raw")])
def test_idx_files_are_read_zipped_or_not(
    tmp_path: Path, official: Official, name: str, where: str, zipped: bool
) -> None:
    x = np.random.default_rng(0).integers(0, 256, (10, 28, 28), dtype=np.uint8)
    write_idx(tmp_path / where, x)
    if zipped:
        for path in (tmp_path / where).iterdir():
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        official(name, *(tmp_path / where).iterdir())
    data = Data(name=name, root=str(tmp_path), val_size=0).load()
    assert data.train.x.equal(torch.from_numpy(x[:, None]))
    assert data.train.y.tolist() == list(range(10))
    assert data.classes[9] == ("9" if name == "mnist" else "Ankle boot")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[:7],
        lambda raw: raw + b"x",
        lambda raw: b"\x00\x00\x0d\x03" + raw[4:],
        lambda raw: raw[:4] + b"\xff" * 12 + raw[16:],
    ],
    ids=["truncated", "no header", "too long", "other type", "absurd size"],
)
def test_a_broken_idx_file_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    write_idx(tmp_path / "mnist", np.zeros((10, 28, 28), dtype=np.uint8))
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(RattleError, match="train-images-idx3-ubyte is truncated or damaged"):
        Data(name="mnist", root=str(tmp_path)).load()


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_2"])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    if "/" in name:
        write_folder(tmp_path, CIFAR10, cifar_files(CIFAR10, 10))
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(RattleError, match=r"its MD5 is none|lacks data_batch_2"):
        Data(name="cifar10", root=str(tmp_path)).load()
