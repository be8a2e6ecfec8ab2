"""The l_1 ball: its projection against the reference's, its steps and starts."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rattle.randomness import ImageStreams
from rattle.threat import Threat


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 60), epsilon=st.floats(0.01, 20), scale=st.floats(0.01, 5))
def test_the_l1_projection_is_the_references(seed, d, epsilon, scale) -> None:
    from pyautoattack.autopgd_base import L1_projection

    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(4, d, generator=generator)
    x[0] = x[0].round()  # at corners of the box
    delta = scale * torch.randn(4, d, generator=generator)
    threat = Threat(norm="l1", epsilon=epsilon)
    mine = threat.project(x + delta, x)
    theirs = x + delta + L1_projection(x, delta, epsilon)
    assert threat.contains(mine, x, slack=1e-6).all()
    away, least = (mine - x - delta).norm(dim=1), (theirs - x - delta).norm(dim=1)
    valid = threat.contains(theirs, x, slack=1e-5)  # with very few pixels theirs may stay outside
    assert (away <= least * 1.001 + 1e-4)[valid].all()


def test_a_point_inside_stays() -> None:
    x = torch.full((2, 1, 3, 3), 0.5)
    x_adv = x + 0.01
    torch.testing.assert_close(Threat(norm="l1", epsilon=1.0).project(x_adv, x), x_adv)


def test_an_l1_step_moves_few_pixels_by_its_length() -> None:
    x = torch.zeros(2, 3, 20, 20)
    step = Threat(norm="l1", epsilon=1.0).ascend(x, torch.randn(2, 3, 20, 20), 0.5)
    torch.testing.assert_close(step.abs().flatten(1).sum(1), torch.full((2,), 0.5))
    assert ((step != 0).flatten(1).sum(1) == 12).all()


def test_an_l1_start_lies_in_the_ball() -> None:
    x, threat = torch.rand(5, 3, 4, 4), Threat(norm="l1", epsilon=2.0)
    start = threat.random_start(x, ImageStreams(0, torch.arange(5)))
    assert threat.contains(start, x).all()
    assert (threat.distance(start, x) > 1.9).all()
