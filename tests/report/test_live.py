"""The live view: it reads a run that is being written, says when it ended, and draws inside its box."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rattle import cli
from rattle.errors import RattleError
from rattle.report.live import braille, chart, progress, view
from support import run_folders as made


def shown(folder: Path, **when: float) -> str:
    from rich.console import Console

    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(view(progress(folder, **when), width=80))
    return console.export_text()


def test_time_left_follows_the_pace_of_the_last_epochs(tmp_path: Path) -> None:
    folder = made.epochs(made.recipe(tmp_path / "run", epochs=10), n=4)
    now = (folder / "metrics.jsonl").stat().st_mtime
    state = progress(folder, now=now + 0.5)
    assert state.done == 4
    assert not state.ended
    assert state.seconds_left == pytest.approx(6 * 2.0 - 0.5)
    assert "epoch 4/10, about 11.5 s left" in shown(folder, now=now + 0.5)


def test_the_status_says_that_a_run_has_ended_or_may_have_stopped(tmp_path: Path) -> None:
    ended, silent = made.recipe(tmp_path / "a", epochs=3), made.recipe(tmp_path / "b", epochs=9)
    for folder in (ended, silent):
        made.epochs(folder, n=3)
    now = (silent / "metrics.jsonl").stat().st_mtime + 600
    assert "the run has ended: 3 of 3 epochs" in shown(ended, now=now)
    assert "no news for 10 min 0 s: the run may have stopped" in shown(silent, now=now)


def test_before_the_first_epoch_it_waits_and_a_half_written_line_is_not_read(tmp_path: Path) -> None:
    folder = made.recipe(tmp_path / "run")
    assert "waiting for the first epoch" in shown(folder)
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "loss": 2.0}\n{"epoch": 2, "lo')
    assert progress(folder).done == 1


def test_the_screen_shows_curves_terms_and_the_learning_rate(tmp_path: Path) -> None:
    text = shown(made.epochs(made.recipe(tmp_path / "run")))
    for words in ("val_robust 0.4667", "val_clean 0.8333", "zeroth 0.1667", "learning rate 0.0333", "2.0 s"):
        assert words in text
    assert any(0x2800 < ord(mark) < 0x2900 for mark in text)
    assert max(map(len, text.splitlines())) <= 80


def test_a_rising_curve_runs_from_the_lower_left_to_the_upper_right() -> None:
    cells = braille([0.0, 1.0], 4, 2, 0.0, 1.0)
    assert cells[0, 0] == 0
    assert cells[1, 0] & 0x40
    assert cells[0, 3] & 0x08
    assert braille([5.0], 4, 2, 5.0, 5.0).any()


def test_without_a_terminal_it_prints_a_line_an_epoch_and_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.epochs(made.recipe(tmp_path / "run", epochs=3), n=3)
    assert cli.main(["watch", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["1/3", "2/3", "3/3"]
    assert lines[3] == "the run has ended: 3 of 3 epochs"


def test_once_prints_the_screen_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.epochs(made.recipe(tmp_path / "run", epochs=9), n=3)
    assert cli.main(["watch", str(folder), "--once"]) == 0
    assert "epoch 3/9" in capsys.readouterr().out


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RattleError, match=r"no recipe\.yaml"):
        progress(tmp_path)
    assert cli.main(["watch", str(tmp_path / "nowhere"), "--once"]) == 2
    assert cli.main(["watch", str(tmp_path), "--every", "0"]) == 2
    assert "--every must be > 0" in capsys.readouterr().err


def test_a_legend_that_is_too_long_goes_on_in_a_second_line() -> None:
    curves = {f"a-long-name-{i}": [0.123456, 0.654321] for i in range(5)}
    text = chart(curves, width=44, height=3).plain
    assert all(f"a-long-name-{i} 0.6543" in text for i in range(5))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 9 + 44
