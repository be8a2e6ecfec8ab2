"""Every row of the paper's Tables 1 to 5 trains and evaluates at a slim width."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rattle.cli.main import main
from rattle.models.registry import create_model
from rattle.paper import tables
from rattle.paper.rows import Row
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import flatten, replace_at, to_plain

ROWS = [(number, row) for number in range(1, 6) for row in tables.table(number).rows if row.recipe]
SURROGATES = sorted({c.surrogate for _, row in ROWS for c in row.cells if c.surrogate})
WIDTHS = {
    "PreAct ResNet-18": 8,
    "WRN-34-10": 2,
    "WRN-34-20": 1,
    "WRN-70-16": 1,
    "VGG16": 8,
    "MobileNetV2": 8,
}  # slim: the same layers, fewer channels
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


def as_in_the_table(row: Row) -> Recipe:
    recipe = get_recipe(row.recipe or "")
    for name, value in row.overrides:
        recipe = replace_at(recipe, name, value)
    return recipe


def test_every_row_of_the_first_five_tables_names_a_recipe() -> None:
    assert len(ROWS) >= 49  # Gowal et al. (2020) too, where that method is registered
    assert {row.architecture for _, row in ROWS} | {"WRN-70-16"} == set(WIDTHS)
    assert [f"{dataset}-linf-preact18-at" for dataset in sorted(CLASSES)] == SURROGATES
    for _, row in ROWS:
        recipe = as_in_the_table(row)
        assert recipe.data.name == row.dataset
        assert dict(row.overrides).items() <= flatten(to_plain(recipe)).items()
    for model, width in {(get_recipe(row.recipe or "").model, WIDTHS[row.architecture]) for _, row in ROWS}:
        assert create_model(model, classes=10, width=width).eval()(torch.rand(1, 3, 32, 32)).shape == (1, 10)


FAST = {row.architecture: row for _, row in ROWS if row.architecture in ("VGG16", "MobileNetV2")}.values()
PARAMETERS = [pytest.param(row, "fgsm", id=row.architecture) for row in FAST]  # the deeper ones are slow
PARAMETERS += [pytest.param(row, "pgd20", id=f"{row.recipe}-{row.method}", marks=pytest.mark.slow) for _, row in ROWS]


@pytest.mark.parametrize(("row", "attack"), PARAMETERS)
def test_each_row_trains_and_evaluates(
    row: Row, attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert row.recipe is not None
    words = [word for name, value in row.overrides for word in (f"--{name}", str(value))]
    slim = ["--objective.teacher.width", "8"] if "lbgat" in row.recipe else []
    run = two_steps(row.recipe, row.dataset, WIDTHS[row.architecture], tmp_path, *words, *slim)
    trained = Recipe.from_yaml((run / "recipe.yaml").read_text())
    table = as_in_the_table(row)
    assert trained.objective == (replace_at(table, "objective.teacher.width", 8) if slim else table).objective
    assert trained.attack.threat == get_recipe(row.recipe).attack.threat
    epsilon = ["--threat.epsilon", str(row.cell("pgd20").epsilon)]
    capsys.readouterr()
    assert main(["evaluate", str(run), "--attacks", attack, *epsilon, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 8
    assert result["attacks"][attack]["settings"]["threat"]["norm"] == row.norm


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SURROGATES)
def test_each_surrogate_of_table_4_trains_and_transfers(recipe: str, tmp_path: Path) -> None:
    run = two_steps(recipe, recipe.partition("-")[0], 8, tmp_path)
    assert main(["transfer", "--from", str(run), "--to", str(run), "--attacks", "pgd20", "cw20"]) == 0
