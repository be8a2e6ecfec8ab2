"""--overwrite keeps the old run until the new one has written its first checkpoint."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.recipes.recipe import Recipe
from rattle.runs.lock import FOLDER, set_aside, settle
from rattle.runs.paths import Run
from rattle.training import loop
from rattle.training.loop import fit
from support.tiny_runs import save_run
from support.training import Interrupting, Stop, tiny

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


class Failing(Interrupting):
    """Fails when the run is about to begin."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__()
        self.reason = reason

    def begin(self, state: object) -> None:
        raise self.reason


@pytest.mark.parametrize("reason", [RattleError("x"), Stop(), MemoryError(), KeyboardInterrupt()], ids=repr)
def test_whatever_stops_the_new_run_before_its_first_checkpoint_brings_the_old_one_back(
    run: Run, reason: BaseException
) -> None:
    before = content(run.folder)
    with pytest.raises(type(reason)):
        fit(QUICK, run.folder, overwrite=True, console=Failing(reason))
    assert content(run.folder) == before


@pytest.mark.parametrize(
    "words",
    [
        ["--log", "wandb"],
        ["--optimizer.lr", "nan"],
        ["--optimizer.lr", "inf"],
        ["--optimizer.lr", "1e30"],
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


def test_a_new_run_replaces_the_old_one_with_its_first_checkpoint(run: Run) -> None:
    class Looking(Interrupting):
        def begin(self, state: object) -> None:
            assert (run.folder / FOLDER / "checkpoints" / "best.safetensors").exists()

    fit(QUICK, run.folder, overwrite=True, console=Looking())
    assert not (run.folder / FOLDER).exists()
    assert not run.results.exists()
    assert Recipe.from_yaml(run.recipe.read_text()) == QUICK
    assert (run.folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("moves", range(6))
def test_what_a_killed_process_half_moved_is_moved_back(run: Run, moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename, left = content(run.folder), os.rename, [moves]

    def some(a: Path, b: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stop
        rename(a, b)

    monkeypatch.setattr(os, "rename", some)
    with suppress(Stop):
        set_aside(run)
    monkeypatch.setattr(os, "rename", rename)
    settle(run)
    assert content(run.folder) == before


def test_a_run_that_was_killed_while_it_replaced_another_is_settled_by_the_next(run: Run) -> None:
    before = content(run.folder)
    set_aside(run)
    run.recipe.write_text(QUICK.to_yaml())  # and then the process was killed
    run.timing.write_text("of the new run")
    with pytest.raises(RattleError, match="holds a run already"):
        fit(QUICK, run.folder)
    with pytest.raises(RattleError, match="holds a run of another recipe"):
        fit(QUICK, run.folder, resume=True)
    assert content(run.folder) == before
    set_aside(run)  # killed before there was a new recipe
    with pytest.raises(RattleError, match="holds a run already"):
        fit(QUICK, run.folder)
    assert content(run.folder) == before


def test_divergence_before_the_first_checkpoint_brings_the_old_run_back(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(run.folder)
    spoiled: Callable[..., float] = lambda *_: float("nan")  # noqa: E731
    monkeypatch.setattr(loop, "learning_rate", spoiled)
    with pytest.raises(RattleError, match="diverged"):
        fit(replace(QUICK, epochs=2), run.folder, overwrite=True)
    assert content(run.folder) == before
