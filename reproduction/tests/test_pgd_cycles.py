"""A linear model's attack walks to a corner of the ball and stays there: a cycle of length 1."""

import pytest
import torch
from torch import nn

from rattle.attacks import PGD
from rattle.threat import Threat
from reproduction.pgd_cycles import walk


def test_an_attack_on_a_linear_model_stands_still_in_the_corner_of_the_ball() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    attack = PGD(threat=Threat(epsilon=0.1), step_size=0.05, steps=10, start="none")
    x, y = torch.full((6, 1, 2, 2), 0.5), torch.zeros(6, dtype=torch.long)
    found = walk(model, attack, x, y)
    assert found["cyclic"] == 6
    assert found["steps_saved"] == pytest.approx(0.7)  # two steps to the corner, the third repeats it
    assert found["broken_earlier_only"] == 0
