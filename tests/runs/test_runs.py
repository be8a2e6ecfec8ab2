"""Run folders: begin, continue or replace a run; never mix two, never clear what is not ours."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import write_checkpoint
from rattle.runs.load import resolve_checkpoint
from rattle.runs.lock import open_run, record_line
from rattle.runs.paths import Run
from rattle.runs.source import environment

RECIPE = replace(get_recipe("digits-linf-cnn-trades"), width=2)


def put_checkpoint(path: Path) -> None:
    model = create_model("cnn", classes=10, channels=1, width=2)
    write_checkpoint(path, recipe=RECIPE, classes=tuple("0123456789"), shape=(1, 8, 8), progress={}, model=model)


def begun(folder: Path, recipe: Recipe, **how: bool) -> Run:
    """A run opened and closed again."""
    run = Run(folder)
    with open_run(run, recipe, **how):
        return run


def test_a_run_begins_in_a_new_or_empty_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "a" / "b"):
        run = begun(folder, RECIPE)
        assert Recipe.from_yaml(run.recipe.read_text()) == RECIPE
        assert json.loads((folder / "environment.json").read_text()).keys() == environment().keys()


def test_a_folder_that_holds_a_run_is_refused_resumed_or_replaced(tmp_path: Path) -> None:
    run = begun(tmp_path, RECIPE)
    record_line(run.metrics, {"epoch": 1})
    with pytest.raises(RattleError, match=r"holds a run already: --resume .in Python resume=True. continues it"):
        begun(tmp_path, RECIPE)
    assert run.metrics.exists()
    begun(tmp_path, RECIPE, resume=True)
    assert run.metrics.exists()
    begun(tmp_path, replace(RECIPE, epochs=3), overwrite=True)
    assert not run.metrics.exists()
    assert Recipe.from_yaml(run.recipe.read_text()).epochs == 3


def test_resume_refuses_another_recipe_by_its_settings_and_changes_nothing(tmp_path: Path) -> None:
    run = begun(tmp_path, RECIPE)
    other = replace(RECIPE, batch_size=64, optimizer=replace(RECIPE.optimizer, lr=0.2), epochs=40)
    said = r"another recipe \(optimizer.lr 0.05 -> 0.2, batch_size 128 -> 64\)"
    with pytest.raises(RattleError, match=said):
        begun(tmp_path, other, resume=True)
    with pytest.raises(RattleError, match=r"has 30 epochs, which --resume can make more but not 3"):
        begun(tmp_path, replace(RECIPE, epochs=3), resume=True)
    assert Recipe.from_yaml(run.recipe.read_text()) == RECIPE
    assert not run.history.exists()


def test_resume_makes_a_run_longer_and_its_history_tells_the_former_length(tmp_path: Path) -> None:
    run = begun(tmp_path, RECIPE)
    for epochs in (40, 50):
        begun(tmp_path, replace(RECIPE, epochs=epochs), resume=True)
    assert Recipe.from_yaml(run.recipe.read_text()) == replace(RECIPE, epochs=50)
    lines = [json.loads(line) for line in run.history.read_text().splitlines()]
    assert [(line["epochs_before"], line["epochs"]) for line in lines] == [(30, 40), (40, 50)]
    assert lines[0]["environment_before"]["torch"] == torch.__version__
    begun(tmp_path, RECIPE, overwrite=True)
    assert not run.history.exists()


def test_a_run_that_saved_nothing_begins_anew(tmp_path: Path) -> None:
    begun(tmp_path, RECIPE)
    run = begun(tmp_path, replace(RECIPE, epochs=3))
    assert Recipe.from_yaml(run.recipe.read_text()).epochs == 3


def test_resume_and_overwrite_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="--resume continues a run and --overwrite replaces it: choose one"):
        begun(tmp_path, RECIPE, resume=True, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_someone_else_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RattleError, match="is not empty and holds no run: choose another --out"):
        begun(tmp_path, RECIPE, overwrite=overwrite)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RattleError, match="is a file, not a folder: choose another --out"):
        begun(tmp_path / "file", RECIPE)


def test_a_run_means_its_best_checkpoint_else_its_last(tmp_path: Path) -> None:
    run = begun(tmp_path, RECIPE)
    with pytest.raises(RattleError, match="holds no checkpoint; train there with"):
        resolve_checkpoint(tmp_path)
    put_checkpoint(run.checkpoint("last"))
    assert resolve_checkpoint(tmp_path) == run.checkpoint("last")
    put_checkpoint(run.checkpoint("best"))
    assert resolve_checkpoint(tmp_path) == run.checkpoint("best")
    assert resolve_checkpoint(run.checkpoint("last")) == run.checkpoint("last")
    with pytest.raises(RattleError, match="there is no run or checkpoint"):
        resolve_checkpoint(tmp_path / "nowhere")
