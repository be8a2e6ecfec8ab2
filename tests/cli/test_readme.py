"""The README's commands and its Python run as they stand (shortened only by fewer epochs where training is meant)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from rattle.cli.main import main
from rattle.report.tables import percent
from rattle.runs.zoo import entry, list_zoo
from support.tiny_runs import NET, digits, linear

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL, PYTHON = (re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("bash", "python"))
COMMANDS = [line for block in SHELL for line in block.splitlines() if line.startswith("rattle ")]
SHORTER = ["--epochs", "1", "--width", "4", "--data.train-size", "130"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the files of one's own that the commands name."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my_net.py").write_text(NET.replace("class Net", "class build"))
    torch.save(linear().state_dict(), folder / "theirs.pt")
    train, labels, test, truth = (part[:130].numpy() for part in digits())
    np.savez(folder / "my.npz", x_train=train, y_train=labels, x_test=test, y_test=truth)
    return folder


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
        own = "custom" in words  # a network of one's own has no width
        assert main([*words, *((SHORTER[:2] if own else SHORTER) if training else [])]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("number", "attacks"), [(0, ["pgd20", "cw20"]), (1, ["pgd20"])])
def test_the_readme_python_runs(number: int, attacks: list[str], place: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    block, others = PYTHON[number], len(PYTHON) - 1
    assert others == 1, "a block that is not run"
    exec(block, {})
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("attack  accuracy, %")
    assert [row.split()[0] for row in rows[: 1 + len(attacks)]] == ["clean", *attacks]
    if "AutoAttack" in block:
        assert rows[-1].startswith("robust accuracy: ")


def test_the_table_of_the_zoo_is_what_was_recorded() -> None:
    for name in list_zoo():
        found, threat = entry(name), entry(name)["config"]["recipe"]["attack"]["threat"]
        columns = [found["clean"], found["attacks"]["pgd20"], found["attacks"]["autoattack"]]
        assert {len(column["flags"]) for column in columns} == {500}
        texts = [percent([bit == "1" for bit in column["flags"]]) for column in columns]
        row = " | ".join([f"`zoo:{name}`", f"{threat['norm']} {threat['epsilon']}", *texts])
        assert f"| {row} |\n" in README


def test_the_table_of_cifar10_and_its_reading_are_the_study() -> None:
    study = (ROOT / "reproduction" / "results" / "cifar10-study.md").read_text(encoding="utf-8")
    last = study.partition("**overfit, last checkpoint**")[2].partition("**overfit, last checkpoint, AWP")[0]
    rows = re.findall(r"^\| TRADES.* \| 4 \|.*$", README, re.MULTILINE)
    assert len(rows) == 5
    assert all(row in last for row in rows)
    lipschitz = [float(row.split("|")[3].split()[0]) for row in last.splitlines() if "± " in row][5:]
    assert f"falls by {1 - lipschitz[2] / lipschitz[0]:.0%}".replace("%", " %") in README
    assert "-1.5* [-2.2, -0.7]" in last
    assert "by 1.5 points, 95 % interval [-2.2, -0.7]" in README


def test_every_file_that_the_readme_links_to_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if not link.startswith("https://")]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []
