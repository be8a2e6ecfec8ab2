"""rattle data get and rattle data show."""

import socket
from pathlib import Path

import pytest

from rattle.cli.main import main
from rattle.data.sources import URLS, Remote


def test_show_prints_shapes_and_balance_and_draws_a_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheets" / "digits.png"
    assert main(["data", "show", "digits", "--out", str(sheet)]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("1,297", "1x8x8", "10 of 10", f"contact sheet: {sheet}"))
    assert sheet.read_bytes().startswith(b"\x89PNG")


def test_get_offline_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    remote = Remote(f"http://127.0.0.1:{port}/cifar-10-python.tar.gz", 10, "0" * 32)
    monkeypatch.setitem(URLS, "cifar10", (remote,))
    assert main(["data", "get", "cifar10", "--root", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "cannot download http://127.0.0.1" in said.err
    assert f"or put cifar-10-python.tar.gz into {tmp_path / 'cifar10'} by hand" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "digits", "--out", "sheet.txt"], "--out must be a .png file, got sheet.txt"),
        (["show", "digits", "--resize", "0"], "data.resize must be >= 1"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert sentence in said.err
    assert not list(tmp_path.iterdir())


def test_digits_need_no_getting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "digits"]) == 0
    assert "digits needs no download" in capsys.readouterr().out


def test_a_contact_sheet_replaces_no_file_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "show", "digits"]) == 0
    sheet = tmp_path / "digits-contact-sheet.png"
    sheet.write_bytes(b"mine")
    assert main(["data", "show", "digits"]) == 2
    assert "digits-contact-sheet.png is there already: --overwrite replaces it" in capsys.readouterr().err
    assert sheet.read_bytes() == b"mine"
    assert main(["data", "show", "digits", "--overwrite"]) == 0
    assert sheet.read_bytes() != b"mine"
