"""Progress in a terminal and in a log, and tables in narrow terminals."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Rich

from rattle.cli.console import Console, print_table
from rattle.runs import progress as module
from rattle.runs.progress import NullConsole
from rattle.training.loop import fit
from rattle.training.metrics import LossMeter
from support.tiny_runs import RECIPE

TITLE = "TRADES-AWP + 1st + 2nd, seed 1"


def shown(screen: io.StringIO) -> list[str]:
    """The lines of a terminal, without what moves its cursor."""
    return [line.rstrip() for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_has_title_steps_and_figures_and_fits_its_terminal(width: int) -> None:
    console, screen = Console(), io.StringIO()
    console.rich = Rich(file=screen, width=width, force_terminal=True, color_system=None)
    console.live = True
    with console.progress(TITLE, 400, done=100) as advance:
        advance(1, loss=1.23456)
        console.log("epoch 1/2  loss 1.235")
        advance(1, loss=1.2)
    lines = shown(screen)
    assert "epoch 1/2  loss 1.235" in lines
    assert max(map(len, lines)) <= width
    assert "102/400" in lines[-2]
    assert (TITLE in lines[-2] and "loss 1.2" in lines[-2]) or width == 60


@pytest.mark.parametrize("installed", [True, False])
def test_a_notebook_has_a_bar_where_there_are_widgets_to_draw_it(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(module, "find_spec", lambda name: installed or None)
    assert Console().live == installed


def test_a_log_has_a_line_from_time_to_time_with_the_time_left_by_own_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 5.0, 12.0, 24.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    with Console(seconds=10).progress("pgd20", 100, done=40) as advance:
        advance(10)  # after 5 seconds: too early for a line
        advance(0, part="apgd-ce (1 of 4)")
        advance(20, robust="51.0 %")
    first, last = capsys.readouterr().err.splitlines()
    assert first == "pgd20: 50/100  part apgd-ce (1 of 4)  60 s left"
    assert last == "pgd20: 70/100  part apgd-ce (1 of 4)  robust 51.0 %  24 s left"


def test_a_table_too_wide_for_the_terminal_is_folded_and_none_of_it_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, rows = ["model", "clean", "pgd20"], [["a" * 30 + "[red]", "92.0 [85.0, 95.9]", "61.0 [51.2, 70.0]"]]
    print_table(columns, rows)
    assert len(capsys.readouterr().out.strip().splitlines()) == 3  # no terminal: as wide as it is
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    print_table(columns, rows, title="narrow")
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("a") - text.count("an") >= 30
    assert all(figure in text for figure in ("92.0", "85.0", "95.9", "61.0", "51.2", "70.0", "[red]"))


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
            yield lambda steps=1, **figures: counted.append((steps, total))

    data = replace(RECIPE.data, train_size=48)
    recipe = replace(RECIPE, epochs=3, batch_size=16, data=data, attack=replace(RECIPE.attack, steps=1))
    fit(recipe, tmp_path / "run", log="none", console=Counting())
    assert sum(steps for steps, _ in counted) == counted[0][1] == 9
