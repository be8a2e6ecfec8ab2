"""The threat model: balls, boxes and steepest steps, for both norms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rattle.errors import RattleError
from rattle.randomness import ImageStreams
from rattle.threat import Threat, length

SHAPE = (3, 1, 2, 3)
norms = st.sampled_from(["linf", "l2"])
epsilons = st.floats(0, 0.99, allow_subnormal=False)
seeds = st.integers(0, 2**31)


def images(seed: int) -> torch.Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed))


def far_points(seed: int, scale: float) -> torch.Tensor:
    return scale * torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed + 1))


@settings(max_examples=60, deadline=None)
@given(norms, epsilons, seeds, st.floats(0, 10))
def test_what_is_projected_or_drawn_is_inside_and_stays_where_it_is(
    norm: str, epsilon: float, seed: int, scale: float
) -> None:
    threat, x = Threat(norm=norm, epsilon=epsilon), images(seed)
    start = threat.random_start(x, ImageStreams(seed, torch.arange(len(x))))
    assert start.dtype == x.dtype
    for inside in (threat.project(x + far_points(seed, scale), x), start):
        assert inside.min() >= 0
        assert inside.max() <= 1
        assert (threat.distance(inside, x) <= epsilon + 1e-6).all()
        assert threat.contains(inside, x).all()
        assert torch.allclose(threat.project(inside, x), inside, rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_project_finds_the_nearest_point_of_the_ball(norm: str) -> None:
    x = torch.full((1, 1, 1, 2), 0.5)
    point = x + torch.tensor([0.3, 0.4])
    near = Threat(norm=norm, epsilon=0.1).project(point, x)
    wanted = torch.tensor([0.1, 0.1]) if norm == "linf" else torch.tensor([0.06, 0.08])
    assert torch.allclose(near - x, wanted.view_as(x))


@settings(max_examples=60, deadline=None)
@given(norms, seeds, st.floats(1e-3, 1))
def test_no_step_of_that_size_raises_a_linear_function_more_than_ascend(norm: str, seed: int, size: float) -> None:
    threat, x, a = Threat(norm=norm), images(seed), far_points(seed, 1.0)
    gain = (a * (threat.ascend(x, a, size) - x)).flatten(1).sum(1)
    dual = a.flatten(1).abs().sum(1) if norm == "linf" else a.flatten(1).norm(dim=1)
    assert torch.allclose(gain, size * dual, rtol=1e-4, atol=1e-6)  # Hoelder's bound, reached
    assert torch.allclose(threat.distance(threat.ascend(x, a, size), x), torch.full((3,), size), atol=1e-6)
    assert torch.equal(threat.ascend(x, torch.zeros_like(x), size), x)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_start_is_uniform_in_the_ball(norm: str) -> None:
    n, x = 4000, torch.full((4000, 1, 1, 2), 0.5)
    threat = Threat(norm=norm, epsilon=0.4)
    radius = threat.distance(threat.random_start(x, ImageStreams(0, torch.arange(n))), x) / 0.4
    # in two dimensions P(radius <= r) = r^2 for both norms
    for r in (0.25, 0.5, 0.75):
        assert abs(float((radius <= r).float().mean()) - r * r) < 0.03


@settings(max_examples=40, deadline=None)
@given(norms, seeds)
def test_contains_tells_inside_from_outside(norm: str, seed: int) -> None:
    threat = Threat(norm=norm, epsilon=0.1)
    x, direction = torch.full(SHAPE, 0.5), far_points(seed, 1.0)
    unit = direction / (direction.abs().amax((1, 2, 3), keepdim=True) if norm == "linf" else length(direction))
    assert threat.contains(x + 0.0999 * unit, x).all()
    assert not threat.contains(x + 0.1011 * unit, x).any()


def test_contains_judges_each_image_and_the_box_too() -> None:
    x = torch.tensor([0.5, 0.99, 0.01]).view(3, 1, 1, 1)
    x_adv = torch.tensor([0.45, 1.01, -0.01]).view(3, 1, 1, 1)
    assert Threat(epsilon=0.1).contains(x_adv, x).tolist() == [True, False, False]
    assert not Threat(epsilon=0.1).contains(torch.full_like(x, float("nan")), x).any()


@pytest.mark.parametrize(
    "setting",
    [{"norm": "l7"}, {"epsilon": -0.1}, {"epsilon": float("nan")}, {"epsilon": 8}, {"epsilon": 1e30, "norm": "l2"}],
)
def test_a_threat_that_means_nothing_is_refused(setting: dict) -> None:
    with pytest.raises(RattleError, match=f"threat.{next(iter(setting))}"):
        Threat(**setting)
