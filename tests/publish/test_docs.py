"""docs/guides/publishing.md and publishing-robustbench.md: their examples run, the zoo's table is what was recorded."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from rattle.cli.main import main
from rattle.data.registry import Data
from rattle.models.pretrained import adapt
from rattle.models.registry import create_model
from rattle.report.tables import percent
from rattle.runs.load import load
from rattle.runs.zoo import entry, list_zoo
from support import run_folders
from support.tiny_runs import save_run

ROOT = Path(__file__).parents[2]
THEIR_NAMES = ROOT / "tests" / "models" / "robustbench_names.txt"
TEXT = (ROOT / "docs" / "guides" / "publishing.md").read_text(encoding="utf-8")
ROBUSTBENCH = (ROOT / "docs" / "guides" / "publishing-robustbench.md").read_text(encoding="utf-8")
PYTHON, FOR_ROBUSTBENCH = (re.findall(r"```python\n(.*?)```", text, re.DOTALL) for text in (TEXT, ROBUSTBENCH))
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


def test_the_commands_run(here: Path) -> None:
    run_folders.epochs(save_run(here / "runs" / "a"))
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


def test_the_lines_for_robustbench_give_its_names_and_the_whole_test_set(here: Path) -> None:
    save_run(here / "runs" / "a")
    train, evaluate = re.findall(r"^rattle (.*)$", ROBUSTBENCH, re.MULTILINE)
    assert train.startswith("train ")
    faster = shlex.split(evaluate.replace("autoattack", "fgsm"))
    assert main(faster) == 0
    names: dict = {}
    for code in FOR_ROBUSTBENCH:
        exec(code.replace("results/autoattack", "results/fgsm"), names)
    result = json.loads(Path("runs/a/results/fgsm.json").read_text())
    x_adv = torch.load("Jin2023Randomized-adversarial.pt", weights_only=True)
    predicted = load("runs/a")(x_adv).argmax(1)
    labels = Data(name="digits").source().test.y
    assert (predicted == labels).int().tolist() == result["attacks"]["fgsm"]["flags"]
    assert json.loads(Path("Jin2023Randomized.json").read_text())["autoattack_acc"] == (
        f"{100 * result['robust_accuracy']:.2f}"
    )
    stored = [line.split() for line in THEIR_NAMES.read_text().splitlines() if not line.startswith("#")]
    classes = {"wrn16-1": "WideResNet", "wrn16-1-dm": "DMWideResNet", "resnet18": "ResNet", "preact18": "PreActResNet"}
    for model, kind in classes.items():
        network = create_model(model, classes=10)
        renamed = names["renamed"](network.state_dict(), kind)
        assert set(renamed) == {words[1] for words in stored if words[0] == model}
        assert set(adapt(renamed, network)) == set(network.state_dict())
