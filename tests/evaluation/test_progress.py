"""What an evaluation shows: images done before are not counted into the pace, and an ensemble's parts have lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rattle.attacks import PGD, AttackSequence
from rattle.evaluation.evaluate import evaluate
from rattle.runs.progress import Interrupted, NullConsole, RichConsole
from rattle.threat import Threat


class Recorder(NullConsole):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.begun: list[tuple[str, int, int]] = []
        self.steps: list[int] = []
        self.figures: list[dict[str, float | str]] = []

    def log(self, line: str) -> None:
        self.lines.append(line)

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0) -> Iterator:
        self.begun.append((title, total, done))

        def advance(steps: int = 1, **figures: float | str) -> None:
            self.steps.append(steps)
            self.figures.append(figures)

        yield advance


def case(n: int = 50) -> tuple[nn.Module, Tensor, Tensor]:
    """A linear model, and images that it classifies correctly."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), torch.rand(n, 1, 4, 4)
    return model, x, model(x).argmax(1)


ENSEMBLE = AttackSequence(
    {"weak": PGD(threat=Threat(epsilon=0.05), steps=1), "strong": PGD(threat=Threat(epsilon=0.05))}
)


def test_the_part_under_way_is_shown_and_each_part_has_a_line_when_it_is_final() -> None:
    console = Recorder()
    result = evaluate(*case(), {"both": ENSEMBLE}, batch_size=30, console=console).attacks["both"]
    assert [figures["part"] for figures in console.figures if "part" in figures] == [
        "weak (1 of 2)",
        "strong (2 of 2)",
    ] * 2
    robust = {name: f"{100 * sum(flags) / 50:.1f} % robust" for name, flags in result.parts.items()}
    assert [line.rpartition(",")[0] for line in console.lines] == [f"{name}: {share}" for name, share in robust.items()]
    assert console.figures[-1] == {"robust": f"{100 * result.accuracy:.1f} %"}
    assert sum(console.steps) == 50


def test_batches_of_an_earlier_call_are_done_when_the_bar_begins(tmp_path: Path) -> None:
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        evaluate(*case(), {"both": ENSEMBLE}, batch_size=20, out=tmp_path, stop=lambda: next(asked))
    console = Recorder()
    evaluate(*case(), {"both": ENSEMBLE}, batch_size=20, out=tmp_path, console=console)
    assert console.begun == [("both", 50, 40)]
    assert sum(console.steps) == 10
    assert len(console.lines) == 2


def test_python_shows_progress_unless_it_is_told_to_be_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RichConsole.__init__, "__kwdefaults__", {"seconds": 0.0})
    model, x, y = torch.nn.Flatten(), torch.rand(8, 1, 2, 2), torch.arange(8) % 4
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    result = evaluate(model, loader, attacks="fgsm", batch_size=4)
    assert capsys.readouterr().err.splitlines()[0].startswith("fgsm: 4/8  robust")
    assert evaluate(model, loader, attacks="fgsm", quiet=True).clean == result.clean
    assert capsys.readouterr().err == ""
