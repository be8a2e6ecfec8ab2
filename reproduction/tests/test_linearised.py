"""apgd-t-linearised: targets by linearised distance, exact on a linear model with a single target."""

import json

import pytest
import torch

from rattle.attacks import APGD, describe_attack
from rattle.attacks.registry import get_attack
from rattle.attacks.rows import FlatModel, likeliest
from rattle.threat import Threat
from reproduction.linearised import LinearisedAPGD
from support.attack_cases import NORMS, linear, robust_after


@pytest.mark.parametrize("norm", NORMS)
def test_one_target_is_enough_on_a_linear_model(norm) -> None:
    case = linear(6)
    threat = case.threat(norm)
    attack = LinearisedAPGD(threat=threat, targets=1, steps=60)
    assert torch.equal(robust_after(attack, case), case.distance[norm] > threat.epsilon)


@pytest.mark.parametrize("norm", NORMS)
def test_the_first_class_is_the_one_of_nearest_boundary(norm) -> None:
    case = linear(6)
    flat = FlatModel(case.model, case.x)
    weight, logits = case.model[1].weight.detach(), case.model(case.x).detach()
    classes = likeliest(logits, case.y, 5)
    ranked = LinearisedAPGD(threat=Threat(norm=norm), targets=5).rank(flat, flat.flat(case.x), logits, case.y)
    assert torch.equal(ranked.sort(1).values, classes.sort(1).values)
    dual = {"linf": 1.0, "l2": 2.0, "l1": float("inf")}[norm]
    for i, label in enumerate(case.y):
        steepness = (weight[ranked[i]] - weight[label]).norm(dim=1, p=dual)
        away = (logits[i, label] - logits[i, ranked[i]]) / steepness
        assert torch.all(away.diff() >= -1e-6)
        assert float(away[0]) == pytest.approx(float(case.distance[norm][i]), rel=1e-4)
    assert not torch.equal(ranked, classes)  # the likeliest class is not always the nearest


def test_with_every_class_as_target_it_breaks_what_apgd_t_breaks() -> None:
    case = linear(5)
    threat = case.threat("l2")
    ours = robust_after(LinearisedAPGD(threat=threat, targets=4, steps=40), case)
    assert torch.equal(ours, robust_after(APGD(threat=threat, loss="dlr-targeted", targets=4, steps=40), case))


def test_its_name_is_its_own() -> None:
    attack = get_attack("apgd-t-linearised", Threat(epsilon=0.1), targets=5)
    assert attack == LinearisedAPGD(threat=Threat(epsilon=0.1), targets=5)
    assert "autoattack" not in json.dumps(describe_attack(attack)).lower()
