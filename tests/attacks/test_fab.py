"""FAB against exact distances, and its projection against the reference's, which sorts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyautoattack import fab_projections

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


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 40), share=st.floats(0.01, 1.3))
def test_the_projection_on_plane_and_box_is_as_short_as_the_references(norm, seed, d, share) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.rand(3, d, generator=generator), torch.randn(3, d, generator=generator)
    x[0] = x[0].round()  # at corners of the box, half of the ways are blocked
    sign = torch.tensor([[1.0], [-1.0], [1.0]])
    room = torch.where(-sign * w > 0, 1 - x, x)
    gap = sign * share * (w.abs() * room).sum(1, keepdim=True)  # beyond a share of 1 the box does not reach the plane
    move = project_to_hyperplane(x, w, gap, norm)
    assert ((x + move - 0.5).abs() <= 0.5 + 1e-6).all()
    torch.testing.assert_close((w * move).sum(1, keepdim=True), -gap / max(share, 1), rtol=1e-3, atol=1e-5)
    if share < 0.99:
        # in single precision theirs leaves the plane where |w| is small
        x, w, gap = x.double(), w.double(), gap.double()
        theirs = getattr(fab_projections, f"projection_{norm}")(x, w, (w * x).sum(1) - gap[:, 0]).float()
        lengths = [Threat(norm=norm).distance(each, torch.zeros_like(each)) for each in (move, theirs)]
        torch.testing.assert_close(*lengths, rtol=2e-3, atol=1e-5)


def test_an_unbroken_image_gets_a_point_on_the_way_to_its_nearest_boundary() -> None:
    case = linear(4)
    threat = Threat(norm="l2", epsilon=float(case.distance["l2"].min()) / 2)
    x_adv = FAB(threat=threat, steps=10)(case.model, case.x, case.y)
    assert robust(case.model, x_adv, case.y).all()
    torch.testing.assert_close(threat.distance(x_adv, case.x), torch.full((24,), threat.epsilon))
