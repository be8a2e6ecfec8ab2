"""The loss in a loop of one's own: the example runs and learns, and its step is the library's step."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch

import rattle
from rattle.forward import PairedForward
from rattle.models import create_model, find_head
from rattle.objectives.base import StepContext
from rattle.randomness import ImageStreams
from rattle.training.step import StepInputs, step

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def test_the_example_runs_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("own_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    assert module.main() > 0.3  # chance is 0.1
    assert "pgd20" in capsys.readouterr().out


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("objective", [rattle.AT(), rattle.Trades(), rattle.Trades(taylor=rattle.Taylor(order=2))])
def test_its_gradient_is_that_of_the_librarys_step(objective: rattle.Trades) -> None:
    model, x, y = create_model("cnn", classes=4, channels=1, width=4), torch.rand(12, 1, 8, 8), torch.arange(12) % 4
    attack, draws = rattle.PGD(steps=2, loss="kl", start="gaussian"), ImageStreams(0, torch.arange(12))
    head = find_head(model) if objective.needs.features else None
    mine = copy.deepcopy(model)  # the step moves BatchNorm's statistics
    given = StepInputs(
        x=x,
        y=y,
        forward=PairedForward(model, objective.needs, head),
        attack=attack,
        noise=rattle.Noise(sigma=0),
        objective=objective,
        context=StepContext(draws=draws),
        shared=torch.Generator(),
    )
    step(given)
    x_adv = attack(mine, x, y, generator=ImageStreams(0, torch.arange(12)))
    rattle.compute_loss(objective, mine, x, x_adv, y).backward()
    for p, q in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
