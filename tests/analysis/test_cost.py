"""How long landscapes take is told from what is counted: grid points, attack steps, iterations."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from rattle.analysis import cost
from rattle.analysis.prepare import LandscapeConfig

USUAL = LandscapeConfig()
MORE = [{"points": 51}, {"line_points": 51}, {"surface_points": 31}, {"attack_steps": 20}, {"iterations": 200}]


@pytest.mark.parametrize("change", MORE, ids=str)
def test_more_work_takes_longer(change: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(cost.time, "perf_counter", lambda: next(ticks))  # one second for a loss, one for a gradient
    model, x, y = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), torch.rand(128, 1, 4, 4), torch.arange(128) % 5
    usual = cost.landscape_seconds(model, x, y, USUAL)
    assert cost.landscape_seconds(model, x, y, replace(USUAL, **change)) > usual
    assert cost.landscape_seconds(model, x, y, LandscapeConfig(surface_attacked=False)) < usual / 2
