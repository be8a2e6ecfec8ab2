"""rattle watch waits for a run that is about to begin."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rattle.cli import watch
from rattle.cli.main import main
from support import run_folders as made


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, begins = tmp_path / "run", threading.Event()

    def begin(_: float) -> None:
        begins.set()
        made.epochs(made.recipe(folder, epochs=3), n=3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch.time, "sleep", begin)
        assert main(["watch", str(folder)]) == 0
    said = capsys.readouterr()
    assert begins.is_set()
    assert said.err == f"waiting for a run in {folder} (Ctrl-C leaves)\n"
    assert said.out.splitlines()[-1] == "the run has ended: 3 of 3 epochs"


def test_ctrl_c_leaves_the_waiting_and_a_near_name_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    made.recipe(tmp_path / "trades-2nd")
    monkeypatch.setattr(watch.time, "sleep", interrupt)
    assert main(["watch", str(tmp_path / "trade-2nd")]) == 130
    said = capsys.readouterr().err
    assert f"; there is {tmp_path / 'trades-2nd'} (Ctrl-C leaves)" in said
    assert said.endswith("stopped\n")


def test_a_folder_of_something_else_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["watch", str(tmp_path)]) == 2
    assert "holds no run: it has no recipe.yaml" in capsys.readouterr().err


def test_the_screen_names_the_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.epochs(made.recipe(tmp_path / "run", seed=3))
    assert main(["watch", str(tmp_path / "run"), "--once"]) == 0
    assert ", seed 3)" in capsys.readouterr().out
