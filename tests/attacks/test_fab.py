"""FAB against exact distances, and its projection against a solver that sorts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rattle.attacks import FAB
from rattle.attacks.fab import project_to_hyperplane
from rattle.threat import Threat
from support.attack_cases import NORMS, linear, robust, robust_after


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("targets", [0, 9])
def test_the_result_on_a_linear_model_is_exact(norm, classes, targets) -> None:
    case = linear(classes)
    threat = case.threat(norm, gap=0.06)  # FAB oversteps the boundary by 5 %
    attack = FAB(threat=threat, targets=targets, steps=30)
    assert torch.equal(robust_after(attack, case), case.distance[norm] > threat.epsilon)


def smallest_move(x: Tensor, w: Tensor, gap: float, norm: str) -> float:
    """The exact length by bisection in double precision on the largest change of <w, .> that a length allows."""
    x, w = x.double(), w.double()
    room = torch.where(-gap * w > 0, 1 - x, x)
    size = w.abs()

    def reach(level: float) -> float:
        move = torch.minimum(level * (size if norm == "l2" else torch.ones_like(size)), room)
        return float((size * move).sum())

    if float((size * room).sum()) < abs(gap):
        return float("inf")
    if norm == "l1":
        left, length = abs(gap), 0.0
        for s, r in sorted(zip(size.tolist(), room.tolist(), strict=True), reverse=True):
            spent = min(left, s * r)
            left, length = left - spent, length + (spent / s if s else 0)
        return length
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if reach(middle) >= abs(gap) else (middle, high)
    move = torch.minimum(high * (size if norm == "l2" else torch.ones_like(size)), room) * (size > 0)
    return float(move.max() if norm == "linf" else move.norm())


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 40), share=st.floats(0.01, 1.3))
def test_the_projection_on_plane_and_box_is_the_shortest(norm, seed, d, share) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.rand(3, d, generator=generator), torch.randn(3, d, generator=generator)
    x[0] = x[0].round()  # at corners of the box, half of the ways are blocked
    sign = torch.tensor([[1.0], [-1.0], [1.0]])
    room = torch.where(-sign * w > 0, 1 - x, x)
    gap = sign * share * (w.abs() * room).sum(1, keepdim=True)
    move = project_to_hyperplane(x, w, gap, norm)
    assert ((x + move) >= -1e-6).all()
    assert ((x + move) <= 1 + 1e-6).all()
    met = (w * move).sum(1, keepdim=True)
    torch.testing.assert_close(met, -gap / max(share, 1), rtol=1e-3, atol=1e-5)
    if share < 0.99:
        exact = [smallest_move(x[i], w[i], float(gap[i]), norm) for i in range(3)]
        length = Threat(norm=norm).distance(move, torch.zeros_like(move))
        torch.testing.assert_close(length, torch.tensor(exact, dtype=length.dtype), rtol=2e-3, atol=1e-5)


def test_the_projection_equals_the_references() -> None:
    from pyautoattack import fab_projections

    theirs = {norm: getattr(fab_projections, f"projection_{norm}") for norm in NORMS}
    x, w = torch.rand(20, 50), torch.randn(20, 50)
    b = (w * torch.rand(20, 50)).sum(1)
    for norm in NORMS:
        mine = project_to_hyperplane(x, w, (w * x).sum(1, keepdim=True) - b[:, None], norm)
        torch.testing.assert_close(mine, theirs[norm](x, w, b), rtol=1e-3, atol=1e-4)


def test_an_unbroken_image_gets_a_point_on_the_way_to_its_nearest_boundary() -> None:
    case = linear(4)
    threat = Threat(norm="l2", epsilon=float(case.distance["l2"].min()) / 2)
    x_adv = FAB(threat=threat, steps=10)(case.model, case.x, case.y)
    assert robust(case.model, x_adv, case.y).all()
    torch.testing.assert_close(threat.distance(x_adv, case.x), torch.full((24,), threat.epsilon))
