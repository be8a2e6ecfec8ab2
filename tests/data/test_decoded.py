"""Pictures that are decoded on the fly: by index, the same for every order, worker and subset; and what is refused."""

import io
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rattle.data import Augment, Data, on_device, pictures
from rattle.data.decode import RATIO, crop_draws, random_crop
from rattle.errors import RattleError
from support.command import Command
from support.miniature import encoded, make, picture

CLASSES, SIDE = 4, 24
JPEG = picture(0, (0, 0), SIDE)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of three training and two test pictures, in class folders."""
    path = tmp_path_factory.mktemp("folders")
    make(path, train=3, val=2, side=SIDE, classes=CLASSES)
    return path


def data_of(path: Path, **changes: object) -> Data:
    settings = {"crop": 16, "workers": 0, "val_size": 0, "augment": Augment(pad=0)}
    return Data(name=str(path), **(settings | changes))  # type: ignore[arg-type]


def write(path: Path, members: Mapping[str, bytes]) -> Path:
    """The same pictures as training and test part."""
    for part in ("train", "test"):
        for name, content in members.items():
            (path / part / name).parent.mkdir(parents=True, exist_ok=True)
            (path / part / name).write_bytes(content)
    return path


def test_a_test_picture_is_its_centre_scaled_as_pillow_does(folders: Path) -> None:
    test = data_of(folders, crop=16, resize=20).load().test
    assert test.shape == (2 * CLASSES, 3, 16, 16)
    for i in range(len(test)):
        whole = Image.open(test.x.files.folder / os.fsdecode(test.x.files.names[i])).convert("RGB")
        short = min(whole.size)
        left, upper = ((length - short * 16 / 20) / 2 for length in whole.size)
        box = (left, upper, left + short * 16 / 20, upper + short * 16 / 20)
        twin = np.asarray(whole.resize((16, 16), Image.Resampling.BILINEAR, box=box))
        assert torch.equal(test[torch.tensor([i])].x[0], torch.from_numpy(twin.transpose(2, 0, 1).copy()))


def test_a_large_jpeg_is_decoded_small_and_looks_the_same() -> None:
    content = picture(9, (0, 1), 400)
    box = (20.0, 40.0, 380.0, 400.0)
    whole, drafted = (Image.open(io.BytesIO(content)) for _ in range(2))
    twin = np.asarray(whole.resize((48, 48), Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)
    before = drafted.size
    found = pictures.scaled_part(drafted, box, 48)
    assert drafted.size[0] < before[0] / 3
    assert np.abs(found.astype(int) - twin).mean() < 3


@pytest.mark.process
def test_random_crops_are_a_function_of_seed_and_index_whatever_is_announced(folders: Path) -> None:
    train = data_of(folders).load().train
    everything = torch.arange(len(train))
    before = torch.get_rng_state()
    whole = train.cropped(7, 0.2, []).x[everything]
    order, mask = torch.tensor([5, 0, 11, 5]), everything % 3 == 1
    assert torch.equal(train.cropped(7, 0.2, []).x[order], whole[order])
    assert torch.equal(train.cropped(7, 0.2, [])[mask].x, whole[mask])
    assert not torch.equal(train.cropped(8, 0.2, []).x[everything], whole)
    assert not torch.equal(train.x[:], whole)
    batches = list(torch.tensor([7, 2, 9, 4, 11, 0, 6, 1, 10, 3, 8, 5]).split(3))
    for workers in (0, 2):
        ahead = data_of(folders, workers=workers).load().train.cropped(7, 0.2, batches)
        for index in batches[:2]:
            assert torch.equal(ahead[index].x, whole[index])
        assert torch.equal(ahead[order].x, whole[order])  # not what was announced: decoded then
        for index in batches[2:]:
            assert torch.equal(ahead[index].x, whole[index])
        assert not ahead.x.asked
    assert torch.equal(torch.get_rng_state(), before)  # nor do workers draw from the global generator


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 500),
    st.integers(1, 500),
    st.floats(0.01, 1),
    st.lists(st.floats(0, 0.999999), min_size=22, max_size=22),
)
def test_a_random_crop_lies_in_the_picture(width: int, height: int, area: float, draws: list[float]) -> None:
    left, upper, right, lower = random_crop(width, height, area, draws)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height


def test_random_crops_have_the_areas_and_shapes_that_are_asked_for() -> None:
    boxes = np.array([random_crop(400, 300, 0.25, crop_draws(0, i)) for i in range(2000)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    share, ratio = width * height / (400 * 300), width / height
    assert 0.24 < share.min() < 0.26
    assert 0.9 < share.max() <= 1.01
    assert 0.74 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < RATIO + 0.02
    assert len(np.unique(boxes[:, 0])) > 100


def test_pictures_are_never_whole_in_memory_unless_asked(folders: Path) -> None:
    data = data_of(folders, val_size=4).load()
    assert data.train.decoded
    assert on_device(data.train, "cpu") is data.train
    some = data.train.subset(torch.tensor([4, 2]))
    assert some.decoded
    assert torch.equal(some.x[:], data.train.x[torch.tensor([4, 2])])
    assert some.digest() != data.train.digest()
    assert data.val is not None
    assert not data.val.decoded
    assert data.train.to("cpu").x.shape == data.train.shape
    assert [len(part) for part in data.test.x.split(5)] == [5, 3]
    assert data.test.x[:0].shape == (0, 3, 16, 16)


def huge_png() -> bytes:
    """A PNG whose header claims 10^10 pixels: what it would unpack to is not there to be made."""
    content = bytearray(encoded(np.zeros((4, 4), np.uint8)))
    content[16:24] = (100_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


PICTURES = {
    "cut": JPEG[: len(JPEG) // 2],
    "text": b"hello",
    "nothing": b"",
    "a header alone": JPEG[:2],
    "a gif": encoded(np.zeros((4, 4), np.uint8), "GIF"),
    "a bomb": huge_png(),
    "sixteen bits": encoded(np.zeros((4, 4), np.uint16)),
}


@pytest.mark.process
@pytest.mark.parametrize("what", PICTURES)
def test_a_picture_that_does_not_decode_is_named_in_one_sentence(what: str, tmp_path: Path) -> None:
    write(tmp_path, {"a/1.jpg": JPEG, "b/2.jpg": PICTURES[what]})
    for workers in (0, 1) if what == "cut" else (0,):
        train = data_of(tmp_path, workers=workers).load().train
        assert len(train[torch.tensor([0])]) == 1
        with pytest.raises(RattleError, match=r"train/b/2\.jpg") as refusal:
            train.cropped(0, 0.1, [torch.arange(2)])[torch.arange(2)]
        assert len(str(refusal.value).splitlines()) == 1


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.jpg": JPEG, "b/2.jpg": JPEG})
    (tmp_path / "train/b/2.jpg").unlink()
    os.mkfifo(tmp_path / "train/b/2.jpg")
    with pytest.raises(RattleError, match=r"b/2.jpg is not a file"):
        data_of(tmp_path).load().train.x[:]


def test_pictures_of_every_kind_become_three_channels(tmp_path: Path) -> None:
    grey, colour = np.full((40, 30), 90, np.uint8), np.full((30, 40, 4), 90, np.uint8)
    kinds = {"a/1.png": encoded(grey), "b/2.png": encoded(colour), "b/deeper/3.JPG": encoded(grey, "JPEG")}
    x = data_of(write(tmp_path, kinds)).load().train.x[:]
    assert x.shape == (3, 3, 16, 16)
    assert int((x.int() - 90).abs().max()) <= 1


REFUSED = {
    "a crop larger than possible": (["--crop", "64", "--resize", "32"], "data.crop 64 is larger than data.resize 32"),
    "a crop of arrays": (["digits", "--crop", "8"], "data.crop"),
    "no folder": (["nowhere", "--crop", "8"], "nowhere"),
    "no imagenet": (["imagenet", "--root", "here"], "there is no folder here/imagenet"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_command_refuses_in_one_sentence(what: str, folders: Path, here: Path, command: Command) -> None:
    args, words = REFUSED[what]
    args = args if not args[0].startswith("-") else [str(folders), *args]
    said = command.refused("data", "show", *args)
    assert words in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("setting", [{"workers": 2}, {"augment": Augment(area=0.5)}, {"crop": 8, "resize": 4}])
def test_settings_that_do_nothing_or_cannot_be_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(RattleError, match=r"set data.crop|is larger than"):
        Data(name="cifar10", **setting)  # type: ignore[arg-type]


def test_the_stand_in_looks_like_a_tensor_of_bytes(folders: Path) -> None:
    x = data_of(folders).load().test.x
    twin = x[:]
    assert (x.shape, x.dtype, x.ndim, x.device, len(x)) == (twin.shape, twin.dtype, twin.ndim, twin.device, len(twin))
    assert torch.equal(x[1:3], twin[1:3])
    assert torch.equal(x[torch.tensor([True] + [False] * 7)], twin[:1])
    assert torch.equal(x.fingerprint, data_of(folders).load().test.x.fingerprint)
    assert not torch.equal(x.fingerprint, x.take(torch.arange(4)).fingerprint)
