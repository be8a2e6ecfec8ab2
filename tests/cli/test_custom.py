"""rattle train custom: images and networks of one's own, from the command to a run that can be evaluated."""

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import rattle
from rattle.cli.main import main
from rattle.data.registry import Data
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.training import loop
from support.command import Command
from support.tiny_runs import digits

NET = """
from torch import nn

def build(classes, channels):
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, classes))
"""
QUICK = ["--epochs", "1", "--attack.steps", "1", "--val-attack.steps", "1", "--log", "none"]
MINE = ["train", "custom", "--data.name", "my.npz", "--model", "my_net.py:build", "--method", "trades-2nd"]
PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "training.md").read_text(encoding="utf-8")
NAME = "runs/my-linf-my_net-trades-2nd-seed0"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with colour images of four classes, grey ones, and a network; it is the present folder."""
    x, y, x_test, y_test = (part.numpy() for part in digits())
    few, few_test = np.flatnonzero(y < 4)[:100], np.flatnonzero(y_test < 4)[:20]
    grey = {"x_train": x[few], "y_train": y[few], "x_test": x_test[few_test], "y_test": y_test[few_test]}
    np.savez(tmp_path / "grey.npz", **grey)
    np.savez(tmp_path / "my.npz", **{k: v.repeat(3, 1) if k[0] == "x" else v for k, v in grey.items()})
    (tmp_path / "my_net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe_of(folder: str) -> Recipe:
    return Recipe.from_yaml((Path(folder) / "recipe.yaml").read_text())


def test_own_images_and_network_are_trained_under_a_name_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MINE, *QUICK, "--optimizer.lr", "0.02"]) == 0
    recipe = recipe_of(NAME)
    assert recipe.name == "my-linf-my_net-trades-2nd"
    assert recipe.attack.threat == rattle.Threat(norm="linf", epsilon=8 / 255)
    assert (recipe.optimizer.lr, recipe.epochs, recipe.batch_size, recipe.width) == (0.02, 1, 16, None)
    assert not recipe.data.augment.flip
    said = [line.split(None, 1) for line in capsys.readouterr().err.splitlines()]
    rows = {line[0]: line[1] for line in said[:5]}
    assert list(rows) == ["images", "held", "network", "method", "epochs"]
    assert rows["images"].startswith("90 of 3x8x8 from my.npz, 4 classes; not augmented")
    assert rows["held"].startswith("out 10 images")
    assert rows["network"] == "my_net.py:build, 1,140 parameters"
    assert rows["method"] == "TRADES + 1st + 2nd against linf 8/255"
    assert rows["epochs"].startswith("1, each 5 steps of 16 images")
    assert main(["evaluate", NAME, "--attacks", "fgsm", "--n", "10", "--trust-code"]) == 0


def test_built_in_names_give_the_named_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--width", "4", "--data.train-size", "64", *QUICK]
    assert main(["train", "custom", "--data.name", "digits", "--model=cnn", "--method", "at-awp", *words]) == 0
    assert main(["train", "digits-linf-cnn-at-awp", *words, "--out", "named"]) == 0
    assert "awp " not in capsys.readouterr().err
    assert main(["train", "digits-linf-cnn-trades-awp", *words, "--awp.warmup", "1", "--epochs", "2"]) == 0
    assert "AWP in the last 1 of 2 epochs" in capsys.readouterr().err
    assert recipe_of("runs/digits-linf-cnn-at-awp-seed0") == recipe_of("named")
    assert recipe_of("named").attack.threat == get_recipe("digits-linf-cnn-at-awp").attack.threat


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", "--data.name takes FILE.npz, a FOLDER, or one of digits, cifar10"),
        ("--data.name my.npz", "--model takes FILE.py:FUNCTION"),
        ("--data.name gone.npz --model cnn", "no .npz file at gone.npz"),
        ("--data.name grey.npz --model cnn", "give --epsilon: grey has images"),
        ("--data.name my.npz --model cnn --norm l1", "--norm must be linf or l2, got 'l1'"),
        ("--data.name my.npz --model cnn --epsilon big", "--epsilon must be a number"),
        ("--data.name my.npz --model cnn --epsilon 8", "8 of 255 levels are 8/255"),
        ("--data.name --model cnn", "--data.name"),
        ("--data.name my.npz --model my_net.py", "FILE.py:FUNCTION"),
        ("--data.name my.npz --model my_net.py:bild", "did you mean 'build'?"),
        ("--data.name my.npz --model net.py:build", "no file net.py"),
        ("--data.name my.npz --model my_net.py:build --head tail", "--head NAME (head= in Python): 3"),
        ("--data.name my.npz --model cnn --data.val-size 9999", "none of the 100 training images"),
        ("--data.name my.npz --model cnn --log wandb", "wandb extra"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_no_folder(
    words: str, found: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert found in command.refused("train", "custom", *words.split())
    assert not Path("runs").exists()


def test_grey_images_are_trained_once_epsilon_is_said() -> None:
    words = ["--data.name", "grey.npz", "--model", "my_net.py:build", "--norm", "l2", "--epsilon", "1/2"]
    assert main(["train", "custom", *words, *QUICK]) == 0
    attack = recipe_of("runs/grey-l2-my_net-trades-2nd-seed0").attack
    assert attack.threat == rattle.Threat(norm="l2", epsilon=0.5)
    assert attack.step_size == pytest.approx(0.5 * 15 / 128)


def test_no_images_are_held_out_when_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MINE, *QUICK, "--data.val-size", "0", "--data.train-size", "32", "--out", "run"]) == 0
    assert "held out nothing" in capsys.readouterr().err
    assert recipe_of("run").data.val_size == 0
    assert read_checkpoint(Run(Path("run")).checkpoint("best")).progress["epoch"] == 1


def test_the_images_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_from, source = [], Data.source
    monkeypatch.setattr(Data, "source", lambda data: read_from.append(data.name) or source(data))
    assert main([*MINE, *QUICK]) == 0
    assert read_from == ["my.npz"]
    assert recipe_of(NAME).data.name == "my.npz"


def test_the_command_that_resumes_a_run_trusts_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop, "figures", lambda state: os.kill(os.getpid(), signal.SIGINT) or {})
        assert main([*MINE, *QUICK]) == 130
    (command,) = re.findall("`rattle (.*)`", capsys.readouterr().err)
    assert command == f"train {NAME} --resume --trust-code"
    assert main(command.split()) == 0


def test_the_help_of_custom_needs_no_images(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "custom", "--help"])
    assert stop.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(option in said for option in ("--optimizer.lr", "--method", "--norm", "--epsilon"))
    assert "over the training images (default: 100)" in said


def test_the_page_about_training_runs_as_it_stands() -> None:
    """Shortened: one epoch, then two."""
    blocks = {kind: re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "bash")}
    images, network = blocks["python"]
    exec(images, {})
    Path("my_net.py").write_text(network)
    for command in "".join(blocks["bash"]).splitlines():
        words = [{"120": "2"}.get(word, word) for word in shlex.split(command)[1:]]
        assert main([*words, *(QUICK if "custom" in words else [])]) == 0
    assert recipe_of(NAME).epochs == 2
