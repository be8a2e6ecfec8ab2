"""RayS against exact distances, and its accounting."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import RayS
from support.attack_cases import linear, robust, robust_after


def test_the_distance_on_a_linear_model_is_exact() -> None:
    case = linear(2)
    found = RayS(queries=1200).search(case.model, case.x, case.y)
    torch.testing.assert_close(found.distance, case.distance["linf"], rtol=0.02, atol=1e-3)
    assert not robust(case.model, found.x_adv, case.y).any()
    assert found.adbd == pytest.approx(float(case.distance["linf"].mean()), abs=1e-3)
    epsilon = case.threat("linf").epsilon
    assert torch.equal(found.distance > epsilon, case.distance["linf"] > epsilon)


def test_several_classes_are_never_nearer_than_the_boundary() -> None:
    case = linear(5)
    found = RayS(queries=500).search(case.model, case.x, case.y)
    assert (found.distance >= case.distance["linf"] * 0.999).all()
    assert (found.distance <= 2 * case.distance["linf"]).float().mean() > 0.9


def test_as_an_attack_it_returns_what_lies_inside_the_ball() -> None:
    case = linear(2)
    threat = case.threat("linf")
    found = robust_after(RayS(threat=threat, queries=1200), case)
    assert torch.equal(found, case.distance["linf"] > threat.epsilon)


def test_misclassified_images_count_zero_and_cost_nothing() -> None:
    case = linear(3, n=6)
    y = case.y.clone()
    y[0] = (y[0] + 1) % 3
    found = RayS(queries=40).search(case.model, case.x, y)
    assert (found.distance[0], found.queries[0]) == (0, 0)
    assert (found.queries[1:] == 40).all()


def test_a_label_that_never_changes_leaves_the_whole_box() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([1.0, 0.0]).expand(len(x), 2)

    x = torch.rand(3, 1, 4, 4)
    found = RayS(queries=30).search(Constant(), x, torch.zeros(3, dtype=torch.long))
    assert torch.equal(found.distance, torch.ones(3))
    assert torch.equal(found.x_adv, x)


def test_only_the_label_is_used() -> None:
    class Hard(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.one_hot(case.model(x).argmax(1), 3).float()

    case = linear(3, n=8)
    soft, hard = (RayS(queries=200).search(model, case.x, case.y) for model in (case.model, Hard()))
    assert torch.equal(soft.distance, hard.distance)
