"""--overwrite removes the old run, and nothing where a setting of the new one is refused."""

import sys
from pathlib import Path

import pytest

from rattle.cli.main import main
from rattle.recipes.recipe import Recipe
from rattle.runs.paths import Run
from rattle.training.loop import fit
from support.tiny_runs import save_run
from support.training import tiny

QUICK = tiny("at", epochs=1, batch_size=192)


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(save_run(tmp_path / "run"))
    run.results.mkdir()
    (run.results / "pgd20.json").write_text("{}")
    run.metrics.write_text("")
    (run.folder / "notes.txt").write_text("mine")  # not the run's, and never touched
    return run


@pytest.mark.parametrize(
    "words",
    [
        ["--log", "wandb"],
        ["--optimizer.lr", "nan"],
        ["--optimizer.lr", "inf"],
        ["--batch-size", "0"],
        ["--model", "gone.py:build"],
        ["--device", "cuda:7"],
        ["--width", "999999"],
        ["--optimizer.momentum", "3"],
        ["--save-minutes", "-1"],
        ["--data.train-size", "99999"],
    ],
)
def test_a_bad_setting_loses_nothing(
    words: list[str], run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    before = content(run.folder)
    few = ["--attack.steps", "1", "--val-attack.steps", "1", "--log", "none"]
    try:
        code = main(["train", str(run.folder), *few, *words, "--out", str(run.folder), "--overwrite"])
    except SystemExit as stop:  # the parser's own
        code = stop.code
    assert code == 2
    assert content(run.folder) == before
    assert "Traceback" not in capsys.readouterr().err


def test_a_new_run_takes_the_place_of_the_old_one_and_leaves_other_files(run: Run) -> None:
    fit(QUICK, run.folder, overwrite=True)
    assert not run.results.exists()
    assert Recipe.from_yaml(run.recipe.read_text()) == QUICK
    assert (run.folder / "notes.txt").read_text() == "mine"
