"""Recipes made in Python have the settings of the named ones."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import rattle
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.recipes.catalog import DATASET_SETTINGS, get_recipe, make_recipe
from rattle.threat import Threat

METHODS = ["at", "trades", "trades-2nd", "at-awp-1st", "trades-awp-2nd-released", "trades-1st-fast"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", ["digits", "svhn"])
def test_a_recipe_made_for_a_known_dataset_is_the_named_one(dataset: str, method: str) -> None:
    made = make_recipe(method, data=DATASET_SETTINGS[dataset].data, model="cnn", norm="l2")
    assert made == get_recipe(f"{dataset}-l2-cnn-{method}")


@pytest.mark.parametrize("method", METHODS)
def test_images_that_nobody_knows_get_the_settings_of_cifar10(method: str) -> None:
    data = Data(name="pictures/my.npz")
    made, published = make_recipe(method, data=data, model="preact18"), get_recipe(f"cifar10-linf-preact18-{method}")
    data = replace(data, val_size=0) if method.endswith("released") else data  # the release holds no images out
    assert made == replace(published, data=data, name=f"my-linf-preact18-{method}")


def test_an_optimizer_of_torch_and_a_setting_of_a_part_are_refused_with_what_is_meant() -> None:
    with pytest.raises(RattleError, match=r"optimizer must be rattle.recipes.recipe.SGD or .*AdamW, got Adam"):
        make_recipe("trades", optimizer=torch.optim.Adam([torch.zeros(1, requires_grad=True)]))
    with pytest.raises(RattleError, match=r"no setting 'lr', its optimizer has: optimizer=SGD\(lr="):
        make_recipe("trades", lr=0.01)


@pytest.mark.parametrize(
    ("settings", "epsilon", "step_size"),
    [
        ({}, 8 / 255, 2 / 255),
        ({"norm": "l2"}, 128 / 255, 15 / 255),
        ({"epsilon": 4 / 255}, 4 / 255, 1 / 255),
        ({"norm": "l2", "epsilon": 1.28}, 1.28, 0.15),
        ({"epsilon": 0.3, "step_size": 0.01}, 0.3, 0.01),
        ({"data": Data(name="digits"), "epsilon": 0.1}, 0.1, 0.025),
        ({"step_size": 0.001}, 8 / 255, 0.001),
        ({"norm": "l1", "epsilon": 12.0, "step_size": 1.0}, 12.0, 1.0),
    ],
)
def test_step_sizes_keep_their_proportion_to_epsilon(
    settings: dict[str, Any], epsilon: float, step_size: float
) -> None:
    recipe = make_recipe("trades-2nd", **settings)
    assert recipe.attack.threat == Threat(norm=settings.get("norm", "linf"), epsilon=epsilon)
    assert recipe.attack.step_size == recipe.val_attack.step_size == pytest.approx(step_size)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "trade-2nd"}, "unknown method 'trade-2nd'; did you mean 'trades-2nd'?"),
        ({"method": "trades-3rd"}, "unknown method 'trades-3rd'"),
        ({"method": "at", "norm": "l7"}, "threat.norm must be one of linf, l2, l1, got 'l7'"),
        ({"method": "at", "norm": "l1"}, "no setting of l1 is published: give epsilon and step_size"),
        ({"method": "at", "epsilon": -1}, "epsilon must be"),
        ({"method": "at", "epoch": 3}, "unknown setting of a recipe 'epoch'; did you mean 'epochs'"),
    ],
)
def test_what_no_recipe_can_be_made_of_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RattleError, match=re.escape(sentence)):
        rattle.make_recipe(**settings)


def test_a_file_of_ones_own_keeps_its_own_width() -> None:
    assert make_recipe("at", data=Data(name="digits"), model="net.py:build").width is None
    assert make_recipe("at", data=Data(name="digits"), model="cnn").width == 16


def test_fast_recipes_keep_the_method_and_cut_the_cost() -> None:
    for name in ("cifar10-linf-preact18-trades-awp-2nd", "digits-l2-cnn-at", "svhn-linf-preact18-trades-2nd-released"):
        usual, fast = get_recipe(name), get_recipe(f"{name}-fast")
        for part in ("objective", "noise", "model", "data", "val_attack"):
            assert getattr(fast, part) == getattr(usual, part)
        assert fast.attack.threat == usual.attack.threat
        assert fast.epochs * (2 * fast.attack.steps + 7) < 0.4 * usual.epochs * (2 * usual.attack.steps + 7)
        assert fast.average is not None
