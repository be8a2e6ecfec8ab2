"""Plug-ins: a file outside the package, given as --plugin, through train, evaluate, sweep, table and report."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rattle
from rattle.attacks.registry import ATTACKS
from rattle.cli.main import main
from rattle.data.sources import SOURCES
from rattle.models.registry import BUILDERS
from rattle.models.user import PLUGINS
from rattle.objectives.registry import METHODS

PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

import rattle
from rattle.data import digits
from rattle.losses import ce
from rattle.objectives.base import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Mine(Objective):
    """CE at x' times a weight."""

    title: ClassVar[str] = "Mine"
    weight: float = 1.0

    def terms(self, outputs, y, context):
        return {"mine": self.weight * ce(outputs.logits_adv, y).mean()}


@dataclass(frozen=True)
class Brighten:
    threat: rattle.Threat

    def __call__(self, model, x, y, *, generator=None):
        return (x + self.threat.epsilon).clamp(max=1)


def net(*, classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes))


rattle.register_method("mine", rattle.Method(objective=Mine(), attack=rattle.PGD(steps=1)), summary="my own")
rattle.register_attack("brighten", Brighten)
rattle.register_model("my-net", net)
rattle.register_source("my-digits", digits.digits)
'''
WORDS = ["--data.name", "my-digits", "--model", "my-net", "--method", "mine", "--epsilon", "0.1"]
QUICK = ["--epochs", "1", "--data.train-size", "96", "--data.val-size", "32"]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLUGINS, "")
    file = tmp_path / "elsewhere" / "my_method.py"
    file.parent.mkdir()
    file.write_text(PLUGIN)
    yield file
    forget()


def forget() -> None:
    """As in a process that never ran the file."""
    for registry, name in ((METHODS, "mine"), (ATTACKS, "brighten"), (BUILDERS, "my-net"), (SOURCES, "my-digits")):
        registry.known.pop(name, None)
        registry.objects.pop(name, None)


def test_a_run_names_its_plugin_and_opens_without_its_objective(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, *QUICK, "--objective.weight", "2", "--log", "none", "--out", "run"]
    assert main(["train", "custom", *words, f"--plugin={plugin}"]) == 0
    assert main(["train", "run", "--resume"]) == 0  # by the environment, from here on
    assert main(["evaluate", "run", "--attacks", "brighten", "fgsm", "--n", "20"]) == 0
    assert main(["export", "run"]) == 0
    assert "weight: 2" in Path("run/recipe.yaml").read_text()
    about = json.loads(Path("run/environment.json").read_text())
    assert [entry["file"] for entry in about["plugins"]] == [str(plugin)]
    assert Path("run/source/my_method.py").read_text() == PLUGIN
    forget()
    monkeypatch.setenv(PLUGINS, "")
    rattle.register_model("my-net", sys.modules["rattle_user_my_method"].net)  # the network alone is known
    words = ["--data", "digits", "--attacks", "fgsm", "--n", "20"]
    assert main(["evaluate", "run", *words]) == 0
    assert rattle.load("run").training is False
    assert main(["table", "run"]) == 0
    assert "Mine" in capsys.readouterr().out
    assert main(["report", "run", "--no-compute"]) == 0
    assert "Mine" in Path("run/report.html").read_text(encoding="utf-8")
    assert main(["train", "run", "--resume", "--epochs", "2"]) == 2
    assert "--plugin FILE.py registers your own" in capsys.readouterr().err


def test_a_plugin_that_is_missing_or_raises_is_told(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--plugin", "gone.py"]) == 2
    assert "there is no plug-in" in capsys.readouterr().err
    plugin.write_text("1 / 0")
    assert main(["recipes", "--plugin", str(plugin)]) == 2
    assert "my_method.py:1 raised ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.process
def test_a_plugin_reaches_the_processes_of_sweep_jobs_and_torchrun(plugin: Path) -> None:
    def rattle_command(*words: str, ranks: int = 0) -> str:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
        command = [sys.executable, *start, "-m", "rattle", *words, "--plugin", str(plugin)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert "my own" in rattle_command("recipes")
    rattle_command("train", "custom", *WORDS, *QUICK, "--out", "run", ranks=2)
    found = rattle_command("sweep", "run", "--objective.weight", "1", "2", "--jobs", "2", "--out", "grid")
    assert "2 of 2 runs are finished" in found
    grid = sorted(Path("grid").glob("*/"))
    assert [json.loads((run / "environment.json").read_text())["plugins"][0]["file"] for run in grid[:2]] == [
        str(plugin)
    ] * 2
    attacks = ["--attacks", "brighten", "fgsm", "--n", "60", "--batch-size", "20"]
    rattle_command("evaluate", str(grid[0]), *attacks, "--jobs", "2")
    report = [sys.executable, "-m", "rattle", "report", *map(str, grid), "--out", "page.html"]
    subprocess.run(report, check=True, timeout=100)  # without the plug-in
    assert "Mine" in Path("page.html").read_text()
