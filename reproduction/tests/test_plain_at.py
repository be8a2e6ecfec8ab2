"""The study of plain AT: how K is chosen, and that what was gathered is not trained again."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

import reproduction.plain_at as study
import reproduction.plain_at_epsilon as over_epsilon
from rattle.errors import RattleError
from reproduction.study import AUTOATTACK_IMAGES, TEST_IMAGES, packed
from reproduction.trade_off import ATTACKS


def test_the_fewest_inner_steps_with_a_small_gap_are_chosen() -> None:
    assert study.choose_inner_steps({3: 5.0, 7: 1.0}) is None  # 5 is missing
    assert study.choose_inner_steps({3: 5.0, 5: 2.9}) == 5
    assert study.choose_inner_steps({3: 5.0, 5: 4.0, 7: 3.0, 10: 3.5}) == 10


def test_every_variant_has_a_recipe() -> None:
    for variant in (*study.VARIANTS, *study.LATER):
        recipe = study.recipe_of(variant, 3, 5, "cifar10")
        assert (recipe.attack.steps, recipe.seed, recipe.epochs) == (5, 3, 40)
        assert (recipe.awp is not None) == variant.startswith("awp")


def test_gathered_runs_are_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = argparse.Namespace(out=tmp_path / "runs", data="cifar10.npz")
    monkeypatch.setattr(study, "RESULTS", tmp_path / "plain-at.json")
    assert study.jobs(options)[0] == ("K", study.K_SEED, 3)
    stored = {"inner_steps": {"3": {"gap": 2.0}}, "runs": [{"variant": "at", "seed": 0, "found": {}}]}
    study.RESULTS.write_text(json.dumps(stored))
    assert study.jobs(options)[:2] == [("at-2nd", 0, 3), ("at-1st", 0, 3)]
    assert len(study.jobs(options)) == 5 * 10 - 1


def test_over_epsilon_a_recipe_differs_in_epsilon_and_its_step_alone() -> None:
    for variant, value in over_epsilon.POINTS:
        recipe, at_eight = (
            over_epsilon.recipe_of(variant, value, 2, "cifar10"),
            study.recipe_of(variant, 2, 5, "cifar10"),
        )
        assert recipe.attack.threat.epsilon == pytest.approx(value / 255)
        assert recipe.attack.step_size / at_eight.attack.step_size == pytest.approx(value / 8)
        assert (recipe.attack.steps, recipe.awp, recipe.seed) == (5, at_eight.awp, 2)


def test_runs_over_epsilon_join_those_at_eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_epsilon, "RESULTS", tmp_path / "plain-at-epsilon.json")
    generator, runs = np.random.default_rng(0), []
    points = [(*point, seed) for point in over_epsilon.POINTS for seed in over_epsilon.SEEDS]
    for variant, value, seed in points:
        flags = {"clean": packed(generator.random(TEST_IMAGES) < 0.6 - 0.01 * value)}
        for attack in ATTACKS:
            flags[attack] = packed(
                generator.random(TEST_IMAGES if attack != "autoattack" else AUTOATTACK_IMAGES) < 0.25
            )
        runs.append({"variant": variant, "value": value, "seed": seed, "flags": flags})
    over_epsilon.RESULTS.write_text(json.dumps({"runs": runs[:2]}))
    assert over_epsilon.jobs(tmp_path)[0] == points[2]
    with pytest.raises(RattleError, match="AT has no second point"):
        over_epsilon.frontier()
    over_epsilon.RESULTS.write_text(json.dumps({"runs": runs}))
    found = over_epsilon.frontier()
    assert [[point.value for point in each.points] for each in found.curves] == [[6, 8, 12], [4, 6, 8]]
    assert 100 * found.curves[1].points[2].accuracy("autoattack")[1] == pytest.approx(25.7, abs=0.1)  # stored
