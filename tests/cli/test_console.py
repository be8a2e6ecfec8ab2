"""Progress in a terminal and in a log: nothing wraps, no figure is cut, and the time left counts this process alone."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rattle.cli.bar import Bar, Pace, lay_out, written
from rattle.cli.console import Console, print_table
from rattle.runs.progress import NullConsole
from rattle.training.loop import fit, short_summary
from rattle.training.meter import LossMeter
from support.tiny_runs import RECIPE

TITLE = "TRADES-AWP + 1st + 2nd, seed 1"
FIGURES = {"epoch": "123/200", "loss": 1.23456, "best robust": "51.2 %"}


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_bar_fits_its_terminal_and_shows_figures_whole(width: int) -> None:
    counts = ["47846/78000", "1:02:03 left"]
    lines = lay_out(TITLE, counts, written(FIGURES), width)
    text = "  ".join(lines)
    assert max(map(len, lines)) <= width
    assert text.count("\0") >= 8
    assert all(word in text for word in (TITLE, *counts))
    shown = [figure for figure in written(FIGURES) if figure in text]
    assert len(shown) >= (0 if width == 40 else 2)
    rest = text.replace(TITLE, "").replace("\0", "")
    for word in (*counts, *shown):
        rest = rest.replace(word, "")
    assert rest.strip() == ""  # no part of a figure is left over
    assert (len(lines) == 1) == (width == 120)


def test_a_bar_of_two_lines_does_not_go_back_to_one() -> None:
    assert len(lay_out("pgd20", ["1/2", "0:01"], [], 120)) == 1
    assert len(lay_out("pgd20", ["1/2", "0:01"], [], 120, two=True)) == 2


def test_time_left_counts_from_where_a_resumed_run_begins() -> None:
    now = Clock()
    pace = Pace(1000, 900, now=now)
    assert pace.words() == ["900/1000", "0:00"]
    now.time = 10.0  # the first step is slow: it warms up
    pace.add(1)
    assert pace.left == pytest.approx(99 * 10)
    now.time += 4
    pace.add(2)
    assert pace.left == pytest.approx(97 * 2)
    now.time += 3  # between two reports it counts down
    assert pace.words() == ["903/1000", "3:11 left"]


@pytest.mark.parametrize("every", [1, 50])
def test_time_left_is_the_same_however_often_steps_are_reported(every: int) -> None:
    now = Clock()
    pace = Pace(1000, 0, now=now)
    for step in range(1, 501):
        now.time += 0.5
        if step % every == 0:
            pace.add(every)
    assert pace.left == pytest.approx(250)


def test_figures_keep_their_order_of_importance() -> None:
    bar = Bar("train", Pace(10))
    bar.show({"epoch": "1/2", "loss": 1.0})
    bar.show({"epoch": "2/2", "best robust": "5 %", "loss": 0.5})
    assert list(bar.figures) == ["epoch", "best robust", "loss"]
    bar.show({"epoch": "3/2"})
    assert bar.figures == {"epoch": "3/2", "best robust": "5 %", "loss": 0.5}


def live(width: int) -> tuple[Console, io.StringIO]:
    from rich.console import Console as Rich

    console, screen = Console(), io.StringIO()
    console.rich = Rich(file=screen, width=width, force_terminal=True, color_system=None)
    console.live = True
    return console, screen


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_epochs_line_stays_above_the_bar_and_fits(width: int) -> None:
    console, screen = live(width)
    metrics = {"epoch": 123, "loss": 1.23456, "val_clean": 0.81, "val_robust": 0.512}
    with console.progress(TITLE, 400, done=100) as advance:
        advance(1, **FIGURES)
        console.log(short_summary(metrics, 200, 123.4))
        advance(1, **FIGURES)
    lines = [line.rstrip() for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))]
    gap = " " if width == 60 else "  "
    assert gap.join(("epoch 123/200", "loss 1.235", "clean 81.0 %", "robust 51.2 %", "123 s")) in lines
    assert max(map(len, lines)) <= width
    assert "102/400" in lines[-2]


def test_an_epochs_line_is_of_averaged_weights_if_there_are_any() -> None:
    metrics = {"epoch": 1, "loss": 1.0, "val_robust": 0.1, "val_robust_average": 0.2}
    assert short_summary(metrics, 2, 9.6) == "epoch 1/2  loss 1.000  robust 20.0 %  10 s"


def test_a_log_has_a_line_from_time_to_time(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(seconds=0).progress("pgd20", 100, done=40) as advance:
        advance(0, part="apgd-ce (1 of 4)")
        advance(60, robust="51.0 %")
    first, last = capsys.readouterr().err.splitlines()
    assert first == "pgd20: 40/100  part apgd-ce (1 of 4)  after 0:00"
    assert last == "pgd20: 100/100  part apgd-ce (1 of 4)  robust 51.0 %  0 s left"


def test_a_table_too_wide_for_the_terminal_stands_row_by_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, rows = ["model", "clean", "pgd20"], [["a" * 30, "92.0 [85.0, 95.9]", "61.0 [51.2, 70.0]"]]
    print_table(columns, rows)
    assert len(capsys.readouterr().out.strip().splitlines()) == 3  # no terminal: as wide as it is
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    print_table(columns, rows, title="narrow")
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines)
    assert max(map(len, text.splitlines())) <= 60
    assert re.search(r"pgd20 +61.0 \[51.2, 70.0\]", text)


@pytest.mark.parametrize("every", [1, 4])
def test_training_reports_every_step_once_however_often_losses_are_read(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU losses are read every 50th step; 3 epochs of 3 steps are 9, and 4 is reached in the middle of them."""
    begin = LossMeter.__init__

    def begin_reading(self: LossMeter, *args: Any) -> None:
        begin(self, *args)
        self.every = every

    monkeypatch.setattr(LossMeter, "__init__", begin_reading)
    counted: list[tuple[int, int]] = []

    class Counting(NullConsole):
        @contextmanager
        def progress(self, title: str, total: int, *, done: int = 0) -> Iterator:
            assert title.endswith(", seed 2")

            def advance(steps: int = 1, **figures: float | str) -> None:
                counted.append((steps, total))

            yield advance

    data = replace(RECIPE.data, train_size=48)
    recipe = replace(RECIPE, epochs=3, batch_size=16, data=data, seed=2, attack=replace(RECIPE.attack, steps=1))
    fit(
        replace(recipe, val_attack=replace(RECIPE.val_attack, steps=1)),
        tmp_path / "run",
        log="none",
        console=Counting(),
    )
    assert sum(steps for steps, _ in counted) == counted[0][1] == 9
