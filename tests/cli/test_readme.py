"""The README's commands and its Python run as they stand (shortened only by fewer epochs where training is meant)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rattle.cli.main import main

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHELL, PYTHON = (re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("bash", "python"))
COMMANDS = [line for block in SHELL for line in block.splitlines() if line.startswith("rattle ")]
SHORTER = ["--epochs", "1", "--width", "4", "--data.train-size", "130"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("readme")


def test_the_readme_shows_commands() -> None:
    assert len(COMMANDS) >= 6
    assert "make demo" in README
    assert "make test" in README


@pytest.mark.parametrize("command", COMMANDS)
def test_a_readme_command_runs(command: str, place: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    words = shlex.split(command, comments=True)[1:]
    training = words[0] == "train" and "--help" not in words
    if "--help" in words:
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert not stop.value.code
    else:
        assert main([*words, *(SHORTER if training else [])]) == 0
    assert capsys.readouterr().out.strip()


def test_the_readme_python_runs(place: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    exec(PYTHON[0], {})
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("attack  accuracy, %")
    assert [row.split()[0] for row in rows] == ["clean", "pgd20", "cw20"]
