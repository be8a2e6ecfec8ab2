"""Resuming a run by its folder, making it longer, and a network's file that is gone or has changed."""

import json
import shutil
import sys
import warnings
from hashlib import sha256
from pathlib import Path

import pytest
import torch

import rattle
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.runs.paths import Run
from support.command import Command

DIGITS = "digits-linf-cnn-trades-2nd"
QUICK = ["--data.train-size", "64", "--data.val-size", "20", "--batch-size", "32", "--attack.steps", "1"]
QUICK += ["--log", "none"]
NET = """
from torch import nn

def build(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, classes))
"""
TWO = """
from torch import nn

class Two(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc, self.aux = nn.Linear(64, classes), nn.Linear(64, 5)

    def forward(self, x):
        self.aux(x.flatten(1))
        return self.fc(x.flatten(1))

class Sum(Two):
    def forward(self, x):
        return super().forward(x) + 0.0
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.py and runs/a, trained with it for two epochs."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "net.py").write_text(NET.format(width=8))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", DIGITS, *QUICK, "--model", "net.py:build", "--epochs", "2", "--out", "runs/a"]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """runs/a of a copy, which is the present folder."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Run(Path("runs/a"))


def epochs_of(run: Run) -> list[int]:
    return [json.loads(line)["epoch"] for line in run.metrics.read_text().splitlines()]


def test_a_run_goes_on_by_its_folder_and_gets_longer(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = run.metrics.read_text()
    assert main(["train", "runs/a", "--resume", "--trust-code", "--log", "none"]) == 0
    assert run.metrics.read_text() == before
    capsys.readouterr()
    assert main(["train", "runs/a/recipe.yaml", "--epochs", "4", "--resume", "--trust-code", "--log", "none"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("epochs 2 -> 4: ")
    assert "epochs   4, 2 of them left, each 2 steps of 32 images" in said
    assert run.metrics.read_text().startswith(before)
    assert epochs_of(run) == [1, 2, 3, 4]
    assert [path.name for path in Path("runs").iterdir()] == ["a"]


def test_other_settings_are_refused_with_both_values(run: Run, command: Command) -> None:
    before = run.recipe.read_text()
    said = command.refused("train", "runs/a", "--resume", "--trust-code", "--epochs", "3", "--optimizer.lr", "0.3")
    assert "runs/a holds a run of another recipe (optimizer.lr 0.05 -> 0.3): `rattle train runs/a --resume`" in said
    said = command.refused("train", "runs/a", "--resume", "--trust-code", "--epochs", "1")
    assert "has 2 epochs, which --resume can make more but not 1" in said
    named = ["train", DIGITS, *QUICK, "--model", "net.py:build", "--out", "runs/a", "--resume"]
    assert "--epochs 2 resumes it, --epochs 30 makes it longer" in command.refused(*named)
    assert run.recipe.read_text() == before
    assert epochs_of(run) == [1, 2]


def test_the_network_s_file_is_kept_as_text(run: Run) -> None:
    kept = run.source / "net.py"
    assert kept.read_text() == Path("net.py").read_text()
    about = json.loads(run.environment.read_text())["source"]
    assert about == {"file": "net.py", "sha256": sha256(kept.read_bytes()).hexdigest()}


def test_a_file_that_is_gone_is_named_with_its_copy(run: Run, command: Command) -> None:
    Path("net.py").unlink()
    for words in (["evaluate", "runs/a", "--attacks", "fgsm"], ["train", "runs/a", "--resume", "--trust-code"]):
        said = command.refused(*words)
        assert said.startswith("rattle: net.py, which builds the network of runs/a, is not in ")
        assert said.endswith("read runs/a/source/net.py, then copy it back\n")
    shutil.copy("runs/a/source/net.py", "net.py")
    assert main(["train", "runs/a", "--trust-code", "--epochs", "3", "--resume", "--log", "none"]) == 0
    assert epochs_of(run) == [1, 2, 3]
    assert rattle.load(run.checkpoint("last"), trust_code=True)(torch.rand(1, 1, 8, 8)).shape == (1, 10)


def test_a_file_that_has_changed_is_warned_of_and_refused_only_where_the_weights_do_not_fit(run: Run) -> None:
    Path("net.py").write_text(NET.format(width=8) + "# a remark\n")
    with pytest.warns(UserWarning, match=r"net.py has changed since it built the network of runs/a; the run keeps"):
        rattle.load("runs/a", trust_code=True)
    with pytest.warns(UserWarning, match=r"net.py has changed") as found:
        assert main(["evaluate", "runs/a", "--attacks", "fgsm", "--n", "10", "--trust-code"]) == 0
    assert warnings.formatwarning(found[0].message, UserWarning, "", 0).startswith("warning: net.py has changed")
    Path("net.py").write_text(NET.format(width=9))
    with pytest.warns(UserWarning, match="net.py has changed"), pytest.raises(RattleError, match="another network"):
        rattle.load("runs/a", trust_code=True)


def test_a_refused_training_replaces_no_run(run: Run, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "needs the wandb extra" in command.refused(
        "train", "runs/a", "--trust-code", "--out", "runs/a", "--overwrite", "--log", "wandb"
    )
    assert epochs_of(run) == [1, 2]


def test_the_head_is_the_layer_that_gives_the_logits_wherever_it_is_defined(here: Path, command: Command) -> None:
    Path("two.py").write_text(TWO)
    words = ["train", DIGITS, *QUICK, "--epochs", "1", "--model"]
    assert main([*words, "two.py:Two", "--out", "a"]) == 0
    assert "--head NAME (head= in Python): fc, aux;" in command.refused(*words, "two.py:Sum", "--out", "b")
    assert not Path("b").exists()
    assert main([*words, "two.py:Sum", "--head", "fc", "--out", "b"]) == 0
