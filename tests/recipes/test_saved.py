"""Recipes of versions 0.1 and 0.2 open, or are refused by the name of a setting that is gone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rattle.errors import RattleError
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import SGD, Recipe
from rattle.recipes.saved import REMOVED, REMOVED_OF, upgraded
from rattle.recipes.schema import settings_of
from rattle.weights import Noise

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


@pytest.mark.parametrize("setting", REMOVED)
def test_a_removed_setting_is_dropped_at_its_default_and_refused_elsewhere(setting: str) -> None:
    assert setting not in settings_of(Recipe)
    base = changed("awp", None)
    if setting.startswith(("awp.", "objective.")):  # in parts that the old recipe does not have
        base = get_recipe("digits-linf-cnn-trades-awp-2nd").to_yaml()
    check_removed(setting, REMOVED[setting], base)


def check_removed(setting: str, default: Any, base: str) -> None:
    assert Recipe.from_yaml(changed(setting, default, base)) == Recipe.from_yaml(base)
    text = changed(setting, "another", base)
    with pytest.raises(RattleError, match=rf"^{setting} another was removed after version 0\.2"):
        Recipe.from_yaml(text)
    upgraded(yaml.safe_load(text), any_value=True)  # a published model opens


def test_settings_that_one_method_had_are_its_constants() -> None:
    found = set()
    for name, method in METHODS.items():
        kind = type(method.objective).__name__
        for setting, default in REMOVED_OF.get(kind, {}).items():
            check_removed(f"objective.{setting}", default, get_recipe(f"digits-linf-cnn-{name}").to_yaml())
            found.add(kind)
    assert found == set(REMOVED_OF)


def test_where_noise_goes_follows_from_the_method() -> None:
    for method, where in (("trades-2nd", "matrices"), ("trades-2nd-released", "convolutions")):
        check_removed("noise.where", where, get_recipe(f"digits-linf-cnn-{method}").to_yaml())


def test_a_mode_that_is_gone_is_refused() -> None:
    text = changed("objective.mode", "released")
    with pytest.raises(RattleError, match=r"released was removed after version 0\.2"):
        Recipe.from_yaml(text)
    upgraded(yaml.safe_load(text), any_value=True)


def test_what_sota_and_fat_had_under_other_names_keeps_its_meaning() -> None:
    sota = get_recipe("digits-linf-cnn-sota")
    old = changed("objective.hold_clean", False, sota.to_yaml()).replace("kind: Wang2023", "kind: Gowal")
    assert Recipe.from_yaml(old) == sota
    fat = get_recipe("digits-linf-cnn-fat")
    old = changed("objective.stop", {"tau": 2, "raise_at": [50 / 120, 90 / 120], "omega": 0.001}, fat.to_yaml())
    assert Recipe.from_yaml(old) == replace(fat, objective=replace(fat.objective, tau=2))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"sigma": 0.03, "outer": None}, Noise(sigma=0.03)),
        ({"sigma": 0.03, "outer": 1.0}, Noise(sigma=1.0, inner=0.03)),
        ({"sigma": 0.0, "inner": 0.1, "outer": 1.0}, Noise(sigma=1.0, inner=0.1)),
    ],
)
def test_the_sigma_of_the_outer_step_is_the_noises_own(old: dict[str, Any], new: Noise) -> None:
    assert Recipe.from_yaml(changed("noise", old)).noise == new


@pytest.mark.parametrize(
    ("setting", "value", "changes"),
    [
        ("optimizer", {"lr": 0.3, "momentum": 0.9, "weight_decay": 5e-4}, {"optimizer": SGD(lr=0.3)}),
        ("tf32", True, {"precision": "tf32"}),
        ("keep", None, {}),
        ("keep", {"drops": [0.5, 0.75], "dense": 0.05, "sparse": 0.025}, {"keep_checkpoints": "paper"}),
        ("keep", {"drops": [0.0], "dense": 1.0, "sparse": 0.025}, {"keep_checkpoints": "all"}),
        ("draws", 1, {}),
        ("method", "TRADES", {}),
    ],
)
def test_a_setting_that_changed_its_form_keeps_its_meaning(setting: str, value: Any, changes: dict[str, Any]) -> None:
    assert Recipe.from_yaml(changed(setting, value)) == replace(Recipe.from_yaml(OLD.read_text()), **changes)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("val_attack.threat", {"norm": "l2", "epsilon": 0.5}), ("schedule.last", 0.5)],
)
def test_what_follows_from_another_setting_now_must_agree_with_it(setting: str, value: Any) -> None:
    with pytest.raises(RattleError, match=f"^{setting} "):
        Recipe.from_yaml(changed(setting, value))


def test_the_taylor_settings_were_the_objectives_own() -> None:
    taylor = Recipe.from_yaml(OLD.read_text()).objective.taylor  # type: ignore[union-attr]
    assert (taylor.order, taylor.eta, taylor.mode) == (2, 0.2, "head")
    plain = Recipe.from_yaml(changed("objective.order", 0)).objective.taylor  # type: ignore[union-attr]
    assert (plain.order, plain.eta) == (0, None)


def test_the_weight_of_a_guide_is_its_objectives_own() -> None:
    text = get_recipe("digits-linf-cnn-gat").to_yaml()
    guide = {"weight": 5.0, "late_factor": 4.0, "late_from": 0.86, "noise": 0.5, "step": 1.0}
    recipe = Recipe.from_yaml(changed("objective.guide", guide, text))
    assert recipe == Recipe.from_yaml(changed("objective.weight", 5.0, text))
    with pytest.raises(RattleError, match=r"^objective.guide .* version 0\.2"):
        Recipe.from_yaml(changed("objective.guide", {**guide, "step": 2.0}, text))
