"""rattle data get and rattle data show."""

import socket
from pathlib import Path

import pytest

from rattle.data.sources import URLS, Remote
from support.command import Command


def test_show_prints_shapes_and_balance_and_draws_a_sheet(tmp_path: Path, command: Command) -> None:
    sheet = tmp_path / "sheets" / "digits.png"
    out = command("data", "show", "digits", "--out", str(sheet))
    assert all(word in out for word in ("1,297", "1x8x8", "10 of 10", f"contact sheet: {sheet}"))
    assert sheet.read_bytes().startswith(b"\x89PNG")


def test_get_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    remote = Remote(f"http://127.0.0.1:{port}/cifar-10-python.tar.gz", 10, "0" * 32)
    monkeypatch.setitem(URLS, "cifar10", (remote,))
    said = command.refused("data", "get", "cifar10", "--root", str(tmp_path))
    assert remote.url in said
    assert str(tmp_path / "cifar10") in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "digits", "--out", "sheet.txt"], "--out must be a .png file, got sheet.txt"),
        (["show", "digits", "--resize", "0"], "data.resize must be >= 1"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in command.refused("data", *words)
    assert not list(tmp_path.iterdir())


def test_digits_need_no_getting(command: Command) -> None:
    assert "digits needs no download" in command("data", "get", "digits")


def test_a_contact_sheet_replaces_no_file_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    command("data", "show", "digits")
    sheet = tmp_path / "digits-contact-sheet.png"
    sheet.write_bytes(b"mine")
    assert "--overwrite" in command.refused("data", "show", "digits")
    assert sheet.read_bytes() == b"mine"
    command("data", "show", "digits", "--overwrite")
    assert sheet.read_bytes() != b"mine"
