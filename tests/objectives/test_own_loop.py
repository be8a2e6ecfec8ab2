"""The loss in a loop of one's own: the example runs and learns, and its step is the library's step."""

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def test_the_example_runs_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLE))["main"]
    torch.manual_seed(0)
    assert main() > 0.3  # chance is 0.1
    assert "pgd20" in capsys.readouterr().out
