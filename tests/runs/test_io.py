"""Files: a write is whole or not there, readers name what is damaged, arrays come back, nothing runs."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from rattle.errors import RattleError
from rattle.runs.io import (
    atomic_file,
    load_arrays,
    read_arrays,
    read_json,
    read_jsonl,
    save_arrays,
)


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.bin"
    with atomic_file(path) as file:
        file.write(b"1")
        assert not path.exists()
    assert path.read_bytes() == b"1"

    def interrupted() -> None:
        with atomic_file(path) as file:
            file.write(b"2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"1"
    assert [p.name for p in path.parent.iterdir()] == ["a.bin"]


def test_the_file_that_is_replaced_becomes_the_backup(tmp_path: Path) -> None:
    path, backup = tmp_path / "last", tmp_path / "previous"
    for content in (b"1", b"2", b"3"):
        with atomic_file(path, backup=backup) as file:
            file.write(content)
    assert (path.read_bytes(), backup.read_bytes()) == (b"3", b"2")


def test_a_full_disk_is_one_sentence_and_the_old_arrays_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_arrays(Numbers(np.arange(3), 1.0), tmp_path / "a.npz")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RattleError, match="No space left on device; what was saved earlier is intact"):
        save_arrays(Numbers(np.arange(4), 2.0), path)
    assert load_arrays(Numbers, path).scale == 1.0
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_lines_are_read_by_epoch_and_broken_ones_are_named(tmp_path: Path) -> None:
    path, notes = tmp_path / "metrics.jsonl", []
    path.write_bytes(b'{"epoch": 2, "a": 1}\n\n{"epoch": 1}\n{"loss": 3}\n\xff\n{"epoch": 2, "a": 2}\n{"epoch": 3, "a"')
    assert read_jsonl(path, notes) == [{"epoch": 1}, {"epoch": 2, "a": 2}]
    assert "4, 5, 7" in notes[0]
    assert read_jsonl(tmp_path / "none.jsonl", notes) == []
    assert len(notes) == 1


def test_an_object_is_read_or_the_reason_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    for name, content in (("a.json", '{"x": 1}'), ("b.json", "{"), ("c.json", "[]")):
        (tmp_path / name).write_text(content)
    found = [read_json(tmp_path / f"{name}.json", notes) for name in "abcd"]
    assert found == [{"x": 1}, None, None, None]
    assert notes == ["b.json is damaged and was left out", "c.json does not hold an object and was left out"]


@dataclass(frozen=True)
class Numbers:
    values: np.ndarray
    scale: float


@dataclass(frozen=True)
class Named:
    values: np.ndarray
    name: str


def test_a_dataclass_of_arrays_comes_back(tmp_path: Path) -> None:
    path = save_arrays(Numbers(np.arange(3.0), 0.5), tmp_path / "new" / "a.npz")
    found = load_arrays(Numbers, path)
    assert (found.scale, found.values.tolist()) == (0.5, [0.0, 1.0, 2.0])
    assert load_arrays(Named, save_arrays(Named(np.ones(2, bool), "a"), tmp_path / "named.npz")).name == "a"
    with pytest.raises(RattleError, match="holds Numbers, not Named"):
        load_arrays(Named, path)
    with pytest.raises(RattleError, match="there is no file"):
        load_arrays(Numbers, tmp_path / "none.npz")
    np.savez(path, kind="Numbers", scale=1.0)
    with pytest.raises(RattleError, match=r"another version: .*'values'"):
        load_arrays(Numbers, path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and then nothing", b"\x93NUMPY"])
def test_a_file_that_holds_no_arrays_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(RattleError, match="truncated or damaged"):
        read_arrays(tmp_path / "a.npz")
