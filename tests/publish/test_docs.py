"""docs/guides/publishing.md: its examples run as they stand, and its table of the zoo is what was recorded."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from rattle.cli.main import main
from rattle.report.tables import percent
from rattle.runs.zoo import entry, list_zoo
from support import run_folders
from support.tiny_runs import save_run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "guides" / "publishing.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line for line in re.findall(r"^rattle .*", TEXT, re.MULTILINE) if "owner/name" not in line or "--to" in line
]
SHORTER = {"evaluate": ["--attacks", "fgsm", "--n", "20"], "train": ["--data.train-size", "100"]}


def test_the_examples_in_python_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    offline = [code for code in PYTHON if "hf:" not in code]
    assert len(offline) == 2
    monkeypatch.setattr(sys, "path", sys.path.copy())  # hubconf.py adds to it
    for code in offline:
        exec(code.replace("path/to/rattle", str(ROOT)), {})
    assert re.search(r"^pgd20 +7\d\.\d +\[.*\] +500 ", capsys.readouterr().out, re.MULTILINE)


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_folders.epochs(save_run(tmp_path / "runs" / "a"))
    assert {shlex.split(command)[1] for command in COMMANDS} == {
        "recipes",
        "evaluate",
        "train",
        "export",
        "table",
        "push",
    }
    for command in COMMANDS:
        words = shlex.split(command, comments=True)[1:]
        assert main([*words, *SHORTER.get(words[0], [])]) == 0, command


def test_the_table_of_the_zoo_is_what_was_recorded() -> None:
    for name in list_zoo():
        (row,) = re.findall(rf"^\| `zoo:{name}` \| (l.* \d.*) \|$", TEXT, re.MULTILINE)
        found, threat = entry(name), entry(name)["config"]["recipe"]["attack"]["threat"]
        columns = [found["clean"], *(found["attacks"][attack] for attack in ("pgd20", "cw20", "autoattack"))]
        texts = [percent([bit == "1" for bit in column["flags"]]) for column in columns]
        assert row == " | ".join([f"{threat['norm']} {threat['epsilon']}", *texts])
