"""Training from given weights, and training networks that are not in the registry or that normalise their input."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import rattle
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.models import Normalise, create_model
from rattle.recipes.recipe import Recipe
from rattle.training.state import init_state
from rattle.weights import EMA
from support.tiny_runs import RECIPE, digits, save_run, small_cnn

TINY = [
    "--epochs",
    "1",
    "--data.train-size",
    "40",
    "--data.val-size",
    "10",
    "--batch-size",
    "20",
    "--attack.steps",
    "1",
]
DIGITS = "digits-linf-cnn-trades-2nd"
NET = """
from torch import nn

def build(classes, channels):
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, classes))
"""


def test_fine_tuning_starts_from_a_file_a_checkpoint_or_a_run(tmp_path: Path) -> None:
    run, data = save_run(tmp_path / "run"), RECIPE.data.load()
    torch.save({"state_dict": small_cnn().state_dict()}, tmp_path / "w.pt")
    averaged = rattle.fit(replace(RECIPE, epochs=1, average=EMA()), tmp_path / "averaged", log="none").checkpoint(
        "last"
    )
    for init in (tmp_path / "w.pt", run / "checkpoints" / "best.safetensors", run, averaged):
        wanted = rattle.load(averaged) if init == averaged else small_cnn()
        state = init_state(replace(RECIPE, init=str(init)), data).model.state_dict()
        assert all(torch.equal(state[k], v) for k, v in wanted.state_dict().items())
    with pytest.raises(RattleError, match="no file of weights at nowhere"):
        init_state(replace(RECIPE, init="nowhere"), data)


def test_other_classes_get_a_fresh_head(tmp_path: Path) -> None:
    x, y, _, _ = digits()
    torch.save(small_cnn().state_dict(), tmp_path / "w.pt")
    recipe = replace(RECIPE, init=str(tmp_path / "w.pt"), epochs=1, optimizer=replace(RECIPE.optimizer, lr=1e-12))
    model = rattle.load(rattle.fit(recipe, tmp_path / "run", data=(x[y < 4], y[y < 4]), log="none"))
    assert model(x[:2] / 255).shape == (2, 4)
    for name, p in small_cnn().named_parameters():
        if not name.startswith("head."):
            torch.testing.assert_close(model.get_parameter(name), p)


def test_normalisation_and_silu_survive_saving_and_loading(tmp_path: Path) -> None:
    words = ["--width", "4", *TINY, "--normalise", "--activation", "silu"]
    assert main(["train", DIGITS, *words, "--out", str(tmp_path / "run")]) == 0
    model = rattle.load(tmp_path / "run")
    (layer,) = (m for m in model.modules() if isinstance(m, Normalise))
    recipe = Recipe.from_yaml((tmp_path / "run" / "recipe.yaml").read_text())
    images = recipe.data.load().train.x / 255
    assert float(layer.mean) == pytest.approx(float(images.mean()), abs=1e-4)
    assert float(layer.std) == pytest.approx(float(images.std()), abs=1e-4)
    assert any(isinstance(m, torch.nn.SiLU) for m in model.modules())


def test_the_start_is_measured_and_a_missing_normalisation_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y, _, _ = digits()
    Path("net.py").write_text(NET)
    torch.manual_seed(0)
    net = create_model("net.py:build", classes=10, channels=1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(net((x / 255 - 0.5) / 0.05), y).backward()  # outside the network
        optimizer.step()
    torch.save(net.state_dict(), "w.pt")
    words = ["train", "digits-linf-cnn-trades", "--model", "net.py:build", "--init", "w.pt", *TINY, "--log", "none"]
    words += ["--data.val-size", "200"]
    assert main([*words, "--out", "bare"]) == 0
    printed = capsys.readouterr().err
    assert start(printed) < 70
    assert "normalised as for" in printed
    assert main([*words, "--out", "run", "--mean", "0.5", "--std", "0.05"]) == 0
    printed = capsys.readouterr().err
    assert start(printed) > 80
    assert "a learning rate of 0.05 may undo: rattle.harden" in printed
    assert rattle.Recipe.from_yaml(Path("run/recipe.yaml").read_text()).normalise == (0.5, 0.05)
    assert main([*words, "--out", "other", "--mean", "0.5"]) == 2


def start(printed: str) -> float:
    """The clean accuracy in the line about the start of a run."""
    return float(printed.partition("starts from ")[2].partition("%")[0])
