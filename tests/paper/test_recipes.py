"""Every row of the paper's Tables 1 to 5 trains and evaluates, and so do the recipe's ways to another network."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import rattle
from rattle.cli.main import main
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.models import Normalise
from rattle.models.registry import create_model
from rattle.paper import tables
from rattle.paper.rows import Row
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.training.state import init_state
from support.tiny_runs import RECIPE, digits, save_run, small_cnn

ROWS = [(number, row) for number in range(1, 6) for row in tables.table(number).rows if row.recipe]
SURROGATES = sorted({c.surrogate for _, row in ROWS for c in row.cells if c.surrogate})
WIDTHS = {"PreAct ResNet-18": 8, "WRN-34-10": 2, "VGG16": 8, "MobileNetV2": 8}  # slim: the same layers, fewer channels
CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10}


def generated(folder: Path, dataset: str) -> Path:
    """Random images of the dataset's size and classes."""
    draw, classes = np.random.default_rng(0), CLASSES[dataset]
    arrays = {"classes": np.array([f"class {i}" for i in range(classes)])}
    for part, n in (("train", 20), ("test", 8)):
        arrays |= {f"x_{part}": draw.integers(0, 256, (n, 32, 32, 3), np.uint8)}
        arrays |= {f"y_{part}": draw.integers(0, classes, n)}
    np.savez(folder / f"{dataset}.npz", **arrays)
    return folder / f"{dataset}.npz"


def two_steps(recipe: str, dataset: str, width: int, folder: Path, *words: str) -> Path:
    """Two optimisation steps of a named recipe from the command line, AWP from the first on."""
    data = ["--data.name", str(generated(folder, dataset)), "--data.val-size", "4", "--batch-size", "8"]
    quick = ["--epochs", "1", "--width", str(width), "--attack.steps", "2", "--val-attack.steps", "1"]
    awp = ["--awp.warmup", "0"] if "-awp" in recipe else []
    run = folder / "run"
    assert main(["train", recipe, *data, *quick, *awp, *words, "--out", str(run)]) == 0
    assert json.loads((run / "metrics.jsonl").read_text())["step"] == 2
    return run


def check_row(row: Row, folder: Path, attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert row.recipe is not None
    words = [word for name, value in row.overrides for word in (f"--{name}", str(value))]
    run = two_steps(row.recipe, row.dataset, WIDTHS[row.architecture], folder, *words)
    trained = Recipe.from_yaml((run / "recipe.yaml").read_text())
    assert trained.objective == replace(get_recipe(row.recipe).objective, **dict(eta_of(row)))
    assert trained.attack.threat == get_recipe(row.recipe).attack.threat
    epsilon = ["--threat.epsilon", str(row.cell("pgd20").epsilon)]
    capsys.readouterr()
    assert main(["evaluate", str(run), "--attacks", attack, *epsilon, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 8
    assert result["attacks"][attack]["settings"]["threat"]["norm"] == row.norm


def eta_of(row: Row) -> dict[str, float]:
    return {name.removeprefix("objective."): value for name, value in row.overrides}


def test_every_row_of_the_first_five_tables_names_a_recipe() -> None:
    assert len(ROWS) == 42
    assert {row.architecture for _, row in ROWS} == set(WIDTHS)
    assert [f"{dataset}-linf-preact18-at" for dataset in sorted(CLASSES)] == SURROGATES
    for _, row in ROWS:
        recipe = get_recipe(row.recipe or "")
        assert recipe.data.name == row.dataset
        assert replace(recipe.objective, **eta_of(row)).eta == eta_of(row).get("eta", recipe.objective.eta)
    for model, width in {(get_recipe(row.recipe or "").model, WIDTHS[row.architecture]) for _, row in ROWS}:
        assert create_model(model, classes=10, width=width).eval()(torch.rand(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("architecture", ["VGG16", "MobileNetV2"])  # the deeper ones are among the slow tests
def test_each_architecture_trains_and_evaluates(
    architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = [row for _, row in ROWS if row.architecture == architecture][-1]
    check_row(row, tmp_path, "fgsm", capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "row"), ROWS, ids=lambda v: f"{v.recipe}-{v.method}" if isinstance(v, Row) else v)
def test_each_row_trains_and_evaluates(
    number: int, row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_row(row, tmp_path, "pgd20", capsys)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SURROGATES)
def test_each_surrogate_of_table_4_trains_and_transfers(recipe: str, tmp_path: Path) -> None:
    run = two_steps(recipe, recipe.partition("-")[0], 8, tmp_path)
    assert main(["transfer", "--from", str(run), "--to", str(run), "--attacks", "pgd20", "cw20"]) == 0


# -- another start, another network

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
    run = save_run(tmp_path / "run")
    torch.save({"state_dict": small_cnn().state_dict()}, tmp_path / "w.pt")
    data = RECIPE.data.load()
    for init in (tmp_path / "w.pt", run / "checkpoints" / "best.safetensors", run):
        state = init_state(replace(RECIPE, init=str(init)), data).model.state_dict()
        assert all(torch.equal(state[k], v) for k, v in small_cnn().state_dict().items())
    with pytest.raises(RattleError, match="no file of weights at nowhere"):
        init_state(replace(RECIPE, init="nowhere"), data)


def test_a_checkpoint_with_optimizer_and_average_is_a_start_too(tmp_path: Path) -> None:
    words = ["--width", "4", *TINY, "--average.kind", "EMA"]
    assert main(["train", DIGITS, *words, "--out", str(tmp_path / "a")]) == 0
    last = tmp_path / "a" / "checkpoints" / "last.safetensors"
    state = init_state(replace(RECIPE, init=str(last)), RECIPE.data.load()).model.state_dict()
    own = rattle.load(last).state_dict()
    assert all(torch.equal(state[k], v) for k, v in own.items())


def test_other_classes_get_a_fresh_head(tmp_path: Path) -> None:
    x, y, x_test, y_test = (t.numpy() for t in digits())
    few, few_test = y < 4, y_test < 4
    arrays = {"x_train": x[few], "y_train": y[few], "x_test": x_test[few_test], "y_test": y_test[few_test]}
    np.savez(tmp_path / "four.npz", **arrays)
    torch.save(small_cnn().state_dict(), tmp_path / "w.pt")
    words = ["--width", "4", *TINY, "--data.name", str(tmp_path / "four.npz"), "--init", str(tmp_path / "w.pt")]
    assert main(["train", DIGITS, *words, "--out", str(tmp_path / "run")]) == 0
    recipe = Recipe.from_yaml((tmp_path / "run" / "recipe.yaml").read_text())
    fresh = init_state(recipe, recipe.data.load()).model
    assert fresh.head.weight.shape == (4, small_cnn().head.weight.shape[1])
    pairs = [(v, small_cnn().state_dict()[k]) for k, v in fresh.state_dict().items() if not k.startswith("head.")]
    assert all(torch.equal(a, b) for a, b in pairs)
    assert rattle.load(tmp_path / "run")(torch.rand(2, 1, 8, 8)).shape == (2, 4)


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
    assert main(["evaluate", str(tmp_path / "run"), "--attacks", "fgsm", "--n", "10"]) == 0


@pytest.mark.parametrize("extra", [[], ["--normalise"]])
def test_a_network_of_ones_own_is_trained_and_loaded(
    extra: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mynet.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    assert main(["train", DIGITS, "--model", "mynet.py:build", *TINY, *extra, "--out", "run"]) == 0
    model = rattle.load("run")
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert main(["evaluate", "run", "--attacks", "fgsm", "--n", "10"]) == 0
    assert main(["train", DIGITS, "--model", "mynet.py:build", "--width", "3", *TINY, "--out", "b"]) == 2
    assert "mynet.py:build has no keyword 'width', which the recipe sets" in capsys.readouterr().err


def test_a_recipe_whose_data_are_elsewhere_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path / "run", recipe=replace(RECIPE, data=Data(name="gone.npz")))
    assert main(["evaluate", str(run)]) == 2
    assert "there is no .npz file at gone.npz" in capsys.readouterr().err
