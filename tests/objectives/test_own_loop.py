"""The loss in a loop of one's own: the example runs and learns, and its step is the library's step."""

import copy
import runpy
from pathlib import Path

import pytest
import torch

import rattle
from rattle.models import create_model
from rattle.objectives.base import StepContext
from rattle.randomness import ImageStreams
from rattle.training.step import step
from support.steps import step_inputs

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def test_the_example_runs_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLE))["main"]
    torch.manual_seed(0)
    assert main() > 0.3  # chance is 0.1
    assert "pgd20" in capsys.readouterr().out


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("objective", [rattle.AT(), rattle.Trades(), rattle.Trades(taylor=rattle.Taylor(order=2))])
def test_its_gradient_is_that_of_the_librarys_step(objective: rattle.Trades) -> None:
    model, x, y = create_model("cnn", classes=4, channels=1, width=4), torch.rand(12, 1, 8, 8), torch.arange(12) % 4
    attack, draws = rattle.PGD(steps=2, loss="kl", start="gaussian"), ImageStreams(0, torch.arange(12))
    mine = copy.deepcopy(model)  # the step moves BatchNorm's statistics
    step(step_inputs(model, objective, attack, x, y, StepContext(draws=draws)))
    x_adv = attack(mine, x, y, generator=ImageStreams(0, torch.arange(12)))
    rattle.compute_loss(objective, mine, x, x_adv, y).backward()
    for p, q in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
