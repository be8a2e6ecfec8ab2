"""Pictures that are decoded on the fly: by index, the same for every order, worker and subset; and what is refused."""

import io
import math
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rattle.cli import main
from rattle.data import Augment, Data, on_device
from rattle.data import records as reading
from rattle.data.dataset import shuffle_classes
from rattle.data.decode import RATIO, Crops, Framing, Pictures, open_bytes, scaled
from rattle.data.shards import list_shards
from rattle.errors import RattleError
from support.miniature import add, encoded, make, picture, write_tar

CLASSES, SIDE = 4, 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of three training and two test pictures, in class folders."""
    path = tmp_path_factory.mktemp("folders")
    make(path, train=3, val=2, side=SIDE, classes=CLASSES)
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The same in two shards a part."""
    make(tmp_path / "set", train=3, val=2, side=SIDE, classes=CLASSES, shards=2)
    return tmp_path / "set"


def data_of(path: Path, tmp_path: Path, **changes: object) -> Data:
    settings = {"crop": 16, "workers": 0, "val_size": 0, "augment": Augment(pad=0), "root": str(tmp_path / "root")}
    return Data(name=str(path), **(settings | changes))  # type: ignore[arg-type]


def test_shards_and_folders_give_the_same_pictures(folders: Path, shards: Path, tmp_path: Path) -> None:
    one, other = (data_of(path, tmp_path).load() for path in (folders, shards))
    assert one.train.shape == other.train.shape == (3 * CLASSES, 3, 16, 16)
    assert (len(one.classes), other.classes) == (CLASSES, ("0", "1", "2", "3"))
    for part in ("train", "test"):
        mine, theirs = (getattr(each, part) for each in (one, other))
        pixels = [
            sorted((int(y), x.numpy().tobytes()) for x, y in zip(p.x[:], p.y, strict=True)) for p in (mine, theirs)
        ]
        assert pixels[0] == pixels[1]


def test_a_test_picture_is_its_centre_scaled_as_pillow_does(folders: Path, tmp_path: Path) -> None:
    test = data_of(folders, tmp_path, crop=16, resize=20).load().test
    for i in range(len(test)):
        whole = Image.open(io.BytesIO(test.storage.records.read(i))).convert("RGB")
        short = min(whole.size)
        left, upper = ((length - short * 16 / 20) / 2 for length in whole.size)
        box = (left, upper, left + short * 16 / 20, upper + short * 16 / 20)
        twin = np.asarray(whole.resize((16, 16), Image.Resampling.BILINEAR, box=box))
        assert torch.equal(test[torch.tensor([i])].x[0], torch.from_numpy(twin.transpose(2, 0, 1).copy()))


def test_a_large_jpeg_is_decoded_small_and_looks_the_same() -> None:
    whole = Image.open(io.BytesIO(picture(9, (0, 1), 400)))
    box = (20.0, 40.0, 380.0, 400.0)
    twin = np.asarray(whole.resize((48, 48), Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)
    drafted = open_bytes(picture(9, (0, 1), 400), "it")
    before = drafted.size
    found = scaled(drafted, box, 48)
    assert drafted.size[0] < before[0] / 3
    assert np.abs(found.astype(int) - twin).mean() < 3


def test_random_crops_are_a_function_of_seed_and_index(folders: Path, tmp_path: Path) -> None:
    train = data_of(folders, tmp_path).load().train
    everything = torch.arange(len(train))
    whole = train.cropped(7, 0.2, []).x[everything]
    for workers in (1, 3):
        threaded = data_of(folders, tmp_path, workers=workers).load().train
        assert torch.equal(threaded.cropped(7, 0.2, []).x[everything], whole)
    order = torch.tensor([5, 0, 11, 5])
    assert torch.equal(train.cropped(7, 0.2, []).x[order], whole[order])
    assert not torch.equal(train.cropped(8, 0.2, []).x[everything], whole)
    assert not torch.equal(train.x[:], whole)
    mask = torch.arange(len(train)) % 3 == 1
    assert torch.equal(train.cropped(7, 0.2, [])[mask].x, whole[mask])


def test_what_is_decoded_in_advance_is_what_would_be_decoded_when_asked(folders: Path, tmp_path: Path) -> None:
    train = data_of(folders, tmp_path, workers=2).load().train
    batches = list(torch.randperm(len(train)).split(3))
    plain, ahead = train.cropped(3, 0.3, []), train.cropped(3, 0.3, batches)
    assert len(ahead.storage.begun) == 2
    for index in batches:
        assert torch.equal(ahead[index].x, plain[index].x)
    assert not ahead.storage.begun
    ahead = train.cropped(3, 0.3, batches)
    assert torch.equal(ahead[batches[2]].x, plain[batches[2]].x)  # not what was announced: decoded then
    assert torch.equal(ahead[batches[0]].x, plain[batches[0]].x)


def test_threads_begin_anew_after_a_fork(folders: Path, tmp_path: Path) -> None:
    test = data_of(folders, tmp_path, workers=2).load().test
    test.x[:]
    child = os.fork()
    if not child:
        os._exit(0 if len(test.x[:]) == len(test) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 500),
    st.integers(1, 500),
    st.floats(0.01, 1),
    st.lists(st.floats(0, 0.999999), min_size=22, max_size=22),
)
def test_a_random_crop_lies_in_the_picture(width: int, height: int, area: float, draws: list[float]) -> None:
    left, upper, right, lower = Crops(0, area).box(width, height, draws)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height


def test_random_crops_have_the_areas_and_shapes_that_are_asked_for() -> None:
    crops = Crops(0, 0.25)
    boxes = np.array([crops.box(400, 300, row) for row in crops.draws(torch.arange(2000)).tolist()])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    share, ratio = width * height / (400 * 300), width / height
    assert 0.24 < share.min() < 0.26
    assert 0.9 < share.max() <= 1.01
    assert 0.74 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < RATIO + 0.02
    assert len(np.unique(boxes[:, 0])) > 100


def test_pictures_are_never_whole_in_memory_unless_asked(folders: Path, tmp_path: Path) -> None:
    data = data_of(folders, tmp_path, val_size=4).load()
    assert data.train.decoded
    assert on_device(data.train, "cpu") is data.train
    assert data.train.subset(torch.arange(3)).decoded
    assert data.val is not None
    assert not data.val.decoded
    assert torch.equal(data.train.subset(torch.tensor([4, 2])).x[:], data.train.x[torch.tensor([4, 2])])
    assert data.train.to("cpu").x.shape == data.train.shape
    assert [len(part) for part in data.test.x.split(5)] == [5, 3]


def test_a_folder_without_parts_gives_a_fifth_to_the_test(folders: Path, tmp_path: Path) -> None:
    data = data_of(folders / "train", tmp_path).load()
    assert (len(data.train), len(data.test)) == (10, 2)
    assert data.test.decoded


def test_the_listing_is_kept_and_another_shard_makes_another(shards: Path, tmp_path: Path) -> None:
    first = data_of(shards, tmp_path).load()
    kept = sorted((tmp_path / "root" / "cache").iterdir())
    again = data_of(shards, tmp_path).load()
    assert first.train.digest() == again.train.digest()
    assert sorted((tmp_path / "root" / "cache").iterdir()) == kept
    assert len(kept) == 2
    write_tar(shards / "train-000002.tar", {"9.jpg": picture(1, (0, 9), SIDE), "9.cls": b"1"})
    more = data_of(shards, tmp_path).load()
    assert len(more.train) == len(first.train) + 1
    assert more.train.digest() != first.train.digest()


def test_a_damaged_listing_says_to_delete_it(shards: Path, tmp_path: Path) -> None:
    data_of(shards, tmp_path).load()
    for path in (tmp_path / "root" / "cache").iterdir():
        path.write_bytes(b"no arrays")
    with pytest.raises(RattleError, match=r"is damaged: delete it, it is made again"):
        data_of(shards, tmp_path).load()


def test_classes_of_shards_are_named_by_folders_inside_or_by_a_file_beside(shards: Path, tmp_path: Path) -> None:
    (shards / "classes.txt").write_text("red\ngreen\nblue\ngrey\n")
    assert data_of(shards, tmp_path).load().classes == ("red", "green", "blue", "grey")
    named = {f"{name}/{i}.jpg": picture(i, (0, 0), SIDE) for i, name in enumerate(("cat", "ant"))}
    for part in ("train", "validation"):
        write_tar(tmp_path / "named" / part / "0.tar", named)
    data = data_of(tmp_path / "named", tmp_path).load()
    assert data.classes == ("ant", "cat")
    assert data.train.y.tolist() == [1, 0]
    (shards / "classes.txt").write_text("red\ngreen\n")
    with pytest.raises(RattleError, match=r"a line for each of the 4 classes, and has 2"):
        data_of(shards, tmp_path).load()


def test_members_are_read_where_they_lie_whatever_they_are_called(tmp_path: Path) -> None:
    one = {"../../../evil.jpg": picture(0, (0, 0), SIDE), "../../../evil.cls": b"0"}
    two = {"/etc/passwd.jpg": picture(1, (0, 0), SIDE), "/etc/passwd.cls": b"1", "run.py": b"raise SystemExit(3)"}
    for part in ("train", "test"):
        write_tar(tmp_path / "set" / f"{part}.tar", one | two)
    before = sorted(tmp_path.rglob("*"))
    data = data_of(tmp_path / "set", tmp_path).load()
    assert data.train.x[:].shape == (2, 3, 16, 16)
    after = [path for path in sorted(tmp_path.rglob("*")) if "root" not in path.parts]
    assert after == before


# What is refused: how a set of shards is damaged, and what the sentence says.


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + 512] = b"\xff" * 512
    path.write_bytes(content)


def second_header(path: Path) -> int:
    with tarfile.open(path) as archive:
        return archive.getmembers()[2].offset


def link(path: Path) -> None:
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("secret.jpg")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)


def append(**members: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with tarfile.open(path, "a") as archive:
            for name, content in members.items():
                add(archive, name.replace("_", "."), content)

    return change


JPEG = picture(0, (0, 0), SIDE)
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "of the shards train-0 to 2 in .*, 1 is missing: 1"),
    "cut in a picture": (lambda path: cut(path, 1000), "is cut: 001_00000.jpg ends beyond its 1,000 bytes"),
    "cut between pictures": (
        lambda path: cut(path, second_header(path)),
        "is cut: the empty block at its end is missing",
    ),
    "cut in a header": (lambda path: cut(path, second_header(path) + 100), "is cut"),
    "empty": (lambda path: path.write_bytes(b""), "truncated or damaged .*empty file"),
    "no tar": (lambda path: path.write_bytes(b"\x1f\x8b" * 1024), "truncated or damaged"),
    "damaged in the middle": (lambda path: damage(path, second_header(path)), "is damaged: what follows is no header"),
    "a link": (link, "secret.jpg is a link, and links are not followed"),
    "no class": (append(lonely_jpg=JPEG), "lonely.jpg has no class, neither a .cls beside it nor a folder around it"),
    "a class that is no number": (append(a_jpg=JPEG, a_cls=b"cat"), "the class of a.jpg should be a number"),
    "a class that is long": (append(a_jpg=JPEG, a_cls=b"1" * 99), "would unpack to 99 bytes, more than the 32 allowed"),
    "two of a key": (append(a_jpg=JPEG, a_png=JPEG, a_cls=b"1"), "two pictures of one key: a.jpg and a.png"),
    "a class left out": (
        append(a_jpg=JPEG, a_cls=b"7"),
        "no training picture is of class 4, though classes run up to 7",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_shard_is_refused_in_a_sentence(what: str, shards: Path, tmp_path: Path) -> None:
    write_tar(shards / "train-000002.tar", {"9.jpg": JPEG, "9.cls": b"1"})
    change, words = DAMAGES[what]
    change(shards / "train-000001.tar")
    with pytest.raises(RattleError, match=words) as refusal:
        data_of(shards, tmp_path).load()
    assert len(str(refusal.value).splitlines()) == 1


def test_a_series_that_says_its_length_must_be_whole(tmp_path: Path) -> None:
    for part, number in (("train", 0), ("train", 1), ("val", 0)):
        write_tar(tmp_path / f"{part}-0000{number}-of-0000{3 if part == 'train' else 1}.tar", {"a/1.jpg": JPEG})
    with pytest.raises(RattleError, match=r"of the shards train-0 to 2 in .*, 1 is missing: 2"):
        data_of(tmp_path, tmp_path).load()


def test_a_shard_that_shrinks_after_it_was_listed_is_refused_when_it_is_read(shards: Path, tmp_path: Path) -> None:
    train = data_of(shards, tmp_path).load().train
    cut(shards / "train-000000.tar", 600)
    with pytest.raises(RattleError, match=r"train-000000.tar is cut: 000_00000.jpg should have"):
        train.x[:]


def huge_png() -> bytes:
    """A PNG whose header claims 10^10 pixels: what it would unpack to is not there to be made."""
    content = bytearray(encoded(np.zeros((4, 4), np.uint8)))
    content[16:24] = (100_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


PICTURES: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut": (lambda: JPEG[: len(JPEG) // 2], "is not a whole PNG or JPEG picture"),
    "text": (lambda: b"hello", "is not a whole PNG or JPEG picture"),
    "nothing": (lambda: b"", "is not a whole PNG or JPEG picture"),
    "a header alone": (lambda: JPEG[:2], "is not a whole PNG or JPEG picture"),
    "a gif": (lambda: encoded(np.zeros((4, 4), np.uint8), "GIF"), "is not a whole PNG or JPEG picture"),
    "a bomb": (huge_png, "has more than 89,478,485 pixels; it is not read"),
    "sixteen bits": (lambda: encoded(np.zeros((4, 4), np.uint16)), "has pixels of mode I;16, which 8 bits do not hold"),
}


@pytest.mark.parametrize("what", PICTURES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_does_not_decode_is_named(what: str, workers: int, tmp_path: Path) -> None:
    content, words = PICTURES[what]
    for part in ("train", "test"):
        write_tar(tmp_path / "set" / f"{part}.tar", {"a/1.jpg": JPEG, "b/2.jpg": content()})
    train = data_of(tmp_path / "set", tmp_path, workers=workers).load().train
    assert len(train[torch.tensor([0])]) == 1
    with pytest.raises(RattleError, match=words) as refusal:
        train[torch.arange(2)]
    assert "train.tar/b/2.jpg" in str(refusal.value)


def test_a_large_file_is_refused_before_it_is_read(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 100)
    with pytest.raises(RattleError, match=r"would unpack to .* bytes, more than the 100 allowed"):
        data_of(folders, tmp_path).load().train.x[:]


def test_pictures_of_every_kind_become_three_channels(tmp_path: Path) -> None:
    grey, colour = np.full((40, 30), 90, np.uint8), np.full((30, 40, 4), 90, np.uint8)
    kinds = {"a/1.png": encoded(grey), "b/2.png": encoded(colour), "b/3.jpg": encoded(grey, "JPEG")}
    for part in ("train", "test"):
        write_tar(tmp_path / "set" / f"{part}.tar", kinds)
    x = data_of(tmp_path / "set", tmp_path).load().train.x[:]
    assert x.shape == (3, 3, 16, 16)
    assert int((x.int() - 90).abs().max()) <= 1


REFUSED = {
    "a crop larger than possible": (["--crop", "64", "--resize", "32"], "data.crop 64 is larger than data.resize 32"),
    "a crop of arrays": (["digits", "--crop", "8"], "data.crop is for a folder of pictures or of tar shards"),
    "no folder": (
        ["nowhere", "--crop", "8"],
        "data.crop is for a folder of pictures or of tar shards, and nowhere is none",
    ),
    "an empty class": (["empty", "--crop", "8"], "train/void holds no .png, .jpg, .jpeg file"),
    "no imagenet": (["imagenet", "--root", "here"], "there is no folder here/imagenet with train/ and val/"),
    "a part without shards": (["half", "--crop", "8"], "holds tar shards, but none of the test part"),
    "a class of the test alone": (["more", "--crop", "8"], "unknown class folder 'new'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_command_refuses_in_one_sentence(
    what: str, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty/train/void", "empty/train/a", "empty/test/a", "more/train/a", "more/val/new"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.jpg").write_bytes(JPEG) if "void" not in name else None
    write_tar(tmp_path / "half" / "train-0.tar", {"a/1.jpg": JPEG})
    args, words = REFUSED[what]
    args = args if not args[0].startswith("-") else [str(folders), *args]
    assert main(["data", "show", *args]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("setting", [{"workers": 2}, {"augment": Augment(area=0.5)}, {"crop": 8, "resize": 4}])
def test_settings_that_do_nothing_or_cannot_be_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(RattleError, match=r"set data.crop|is larger than"):
        Data(name="cifar10", **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize("area", [0.0, 1.5, math.nan])
def test_an_area_is_a_share(area: float) -> None:
    with pytest.raises(RattleError, match=r"augment.area is a share"):
        Augment(area=area)


def test_a_set_is_shown(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "show", str(shards), "--crop", "16", "--root", "root"]) == 0
    assert "3x16x16" in capsys.readouterr().out
    assert (tmp_path / "set-contact-sheet.png").exists()


def test_listing_many_members_keeps_no_headers(shards: Path) -> None:
    found = list_shards(sorted(shards.glob("train-*.tar")))
    assert sorted(set(found.place)) == [0, 1]
    assert len(found.names) == len(set(found.names)) == 3 * CLASSES


def test_ranks_within_classes_are_those_of_a_loop_over_the_classes() -> None:
    y = torch.randint(7, (200,)) * 3
    shuffled, ranks = shuffle_classes(y, torch.Generator().manual_seed(1))
    twin = torch.empty_like(shuffled)
    for label in y.unique():
        members = shuffled[y[shuffled] == label]
        twin[members] = torch.arange(len(members))
    assert torch.equal(ranks, twin)


def test_the_stand_in_looks_like_a_tensor_of_bytes(folders: Path, tmp_path: Path) -> None:
    x = data_of(folders, tmp_path).load().test.x
    assert isinstance(x, Pictures)
    twin = x[:]
    assert (x.shape, x.dtype, x.ndim, x.device, len(x)) == (twin.shape, twin.dtype, twin.ndim, twin.device, len(twin))
    assert torch.equal(x[1:3], twin[1:3])
    assert torch.equal(x[torch.tensor([True] + [False] * 7)], twin[:1])
    assert x[:0].shape == (0, 3, 16, 16)
    assert torch.equal(x.fingerprint(), data_of(folders, tmp_path).load().test.x.fingerprint())
    assert not torch.equal(x.fingerprint(), x.take(torch.arange(4)).fingerprint())
    assert Framing(16, 20).centre(40, 20) == (12, 2, 28, 18)
