"""Recipes of versions 0.1 and 0.2 open, or are refused by the name of a setting that is gone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rattle.errors import RattleError
from rattle.objectives import Taylor, Trades
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import SGD, Recipe
from rattle.recipes.saved import REMOVED, REMOVED_OF
from rattle.weights import AWP

OLD = Path(__file__).parents[1] / "integration" / "old_runs" / "format1" / "recipe.yaml"


def changed(setting: str, value: Any, text: str | None = None) -> str:
    """The recipe of version 0.1, or another one, with one setting changed."""
    plain = yaml.safe_load(text or OLD.read_text())
    *parents, name = setting.split(".")
    part = plain
    for parent in parents:
        part = part[parent]
    part[name] = value
    return yaml.safe_dump(plain)


def check_removed(setting: str, default: Any, base: str) -> None:
    assert Recipe.from_yaml(changed(setting, default, base)) == Recipe.from_yaml(base)
    text = changed(setting, "another", base)
    with pytest.raises(RattleError, match=rf"^{setting} another was removed after version 0\.2"):
        Recipe.from_yaml(text)
    Recipe.from_yaml(text, to_open=True)


@pytest.mark.parametrize("setting", REMOVED)
def test_a_removed_setting_is_dropped_at_its_default_and_not_trained_further_elsewhere(setting: str) -> None:
    base = changed("awp", None)
    if setting.startswith(("awp.", "objective.")):  # in parts that the old recipe does not have
        base = get_recipe("digits-linf-cnn-trades-awp-2nd").to_yaml()
    check_removed(setting, REMOVED[setting], base)


def test_settings_that_one_method_had_are_its_constants() -> None:
    found = set()
    for name, method in METHODS.items():
        kind = type(method.objective).__name__
        for setting, default in REMOVED_OF.get(kind, {}).items():
            check_removed(f"objective.{setting}", default, get_recipe(f"digits-linf-cnn-{name}").to_yaml())
            found.add(kind)
    assert found == set(REMOVED_OF)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("objective.mode", "released"),
        ("keep_checkpoints", {"drops": [0.0], "dense": 1.0, "sparse": 0.025}),
        ("val_attack.threat", {"norm": "l2", "epsilon": 0.5}),
        ("schedule.last", 0.5),
    ],
)
def test_what_is_gone_or_follows_from_another_setting_is_not_trained_further(setting: str, value: Any) -> None:
    text = changed(setting, value)
    with pytest.raises(RattleError, match=r"was removed after version 0\.2"):
        Recipe.from_yaml(text)
    Recipe.from_yaml(text, to_open=True)


def test_what_sota_had_under_another_name_keeps_its_meaning() -> None:
    sota = get_recipe("digits-linf-cnn-sota")
    old = changed("objective.hold_clean", False, sota.to_yaml()).replace("kind: Wang2023", "kind: Gowal")
    assert Recipe.from_yaml(old) == sota


@pytest.mark.parametrize(
    ("setting", "value", "changes"),
    [
        ("optimizer", {"lr": 0.3, "momentum": 0.9, "weight_decay": 5e-4}, {"optimizer": SGD(lr=0.3)}),
        ("awp", {"gamma": 0.02, "warmup": 0}, {"awp": AWP(gamma=0.02, warmup=0)}),
        ("keep_checkpoints", None, {}),
        ("draws", 1, {}),
        ("method", "TRADES", {}),
        ("objective.order", 0, {"objective": Trades()}),
        ("objective.mode", "head", {"objective": Trades(taylor=Taylor(order=2, eta=0.2))}),
    ],
)
def test_a_setting_that_changed_its_form_keeps_its_meaning(setting: str, value: Any, changes: dict[str, Any]) -> None:
    assert Recipe.from_yaml(changed(setting, value)) == replace(Recipe.from_yaml(OLD.read_text()), **changes)
