"""rattle data get and rattle data show."""

from pathlib import Path

import pytest

from support.command import Command


def test_show_prints_shapes_and_balance_and_draws_a_sheet(tmp_path: Path, command: Command) -> None:
    sheet = tmp_path / "sheets" / "digits.png"
    out = command("data", "show", "digits", "--out", str(sheet))
    assert all(word in out for word in ("1,297", "1x8x8", f"contact sheet: {sheet}"))
    assert sheet.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "digits", "--out", "sheet.txt"], "--out must be a .png file, got sheet.txt"),
        (["show", "digits", "--resize", "0"], "data.resize must be >= 1"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, here: Path, command: Command) -> None:
    assert sentence in command.refused("data", *words)
    assert not list(here.iterdir())


def test_digits_need_no_getting(command: Command) -> None:
    assert "digits needs no download" in command("data", "get", "digits")


def test_a_contact_sheet_replaces_no_file_unasked(here: Path, command: Command) -> None:
    command("data", "show", "digits")
    sheet = here / "digits-contact-sheet.png"
    sheet.write_bytes(b"mine")
    assert "--overwrite" in command.refused("data", "show", "digits")
    assert sheet.read_bytes() == b"mine"
    command("data", "show", "digits", "--overwrite")
    assert sheet.read_bytes() != b"mine"
