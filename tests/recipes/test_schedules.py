"""Learning rates over a run."""

import math
from itertools import pairwise

import pytest
import torch

from rattle.recipes.schedules import Cosine, OneCycle, Piecewise, kept_epochs


def test_one_cycle_along_cosines_is_that_of_torch() -> None:
    steps, last = 40, 39
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.2)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, pct_start=0.25, total_steps=steps)
    ours = OneCycle(peak=(0.25 * steps - 1) / last, shape="cosine")  # torch counts from the step before
    for step in range(steps):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2 * ours(step / last), rel=1e-6)
        if step < last:
            optimizer.step()
            theirs.step()


def test_checkpoints_are_kept_as_appendix_b_says_and_in_proportion_for_other_lengths() -> None:
    each, every_fifth = [*range(100, 111), *range(150, 161)], [*range(115, 150, 5), *range(165, 201, 5)]
    assert kept_epochs("paper", 200) == tuple(sorted(each + every_fifth))
    assert kept_epochs("paper", 30) == tuple(range(15, 31))
    assert kept_epochs("paper", 400)[:2] == (200, 201)
    for epochs in range(1, 60):
        kept = kept_epochs("paper", epochs)
        assert kept[0] >= 1
        assert kept[-1] == epochs
    assert kept_epochs("all", 3) == (1, 2, 3)
    assert kept_epochs("none", 3) == ()


def test_a_warm_up_rises_to_the_schedule_and_leaves_the_rest_of_it_as_it_was() -> None:
    times = [i / 100 for i in range(101)]
    plain, warm = Piecewise(), Piecewise(warmup=0.1)
    assert [warm(t) for t in times if t >= 0.1] == [plain(t) for t in times if t >= 0.1]
    rise = [warm(t) for t in times if t <= 0.1]
    assert rise[0] == 0.01
    assert rise[-1] == 1
    assert [after - before for before, after in pairwise(rise)] == pytest.approx([0.099] * 10)
    assert [Cosine(warmup=0.1)(t) for t in (0.1, 0.55, 1)] == pytest.approx([1, 0.5, 0])
    assert [Cosine(warmup=0.0)(t) for t in times] == [0.5 * (1 + math.cos(math.pi * t)) for t in times]
