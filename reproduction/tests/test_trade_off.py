"""The study of frontiers: its recipes, its order of work, and a frontier of stored flags."""

import json
from pathlib import Path

import numpy as np
import pytest

import reproduction.trade_off as study
from rattle.errors import RattleError
from reproduction.study import AUTOATTACK_IMAGES, TEST_IMAGES, packed


def test_a_recipe_differs_from_that_of_the_earlier_study_in_the_trade_off_alone() -> None:
    for variant, value in study.POINTS:
        recipe = study.recipe_of(variant, value, 1, "cifar10")
        assert (recipe.objective.inv_lambda, recipe.seed, recipe.epochs) == (value, 1, 10)  # type: ignore[attr-defined]


def test_gathered_runs_join_those_of_the_earlier_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "RESULTS", tmp_path / "trade-off.json")
    assert study.jobs(tmp_path)[0] == ("trades", 4, 0)
    generator, runs = np.random.default_rng(0), []
    points = [(*point, seed) for point in study.POINTS for seed in study.FIRST]
    for variant, value, seed in points[:-1]:  # the last point has two seeds
        flags = {"clean": packed(generator.random(TEST_IMAGES) < 0.62 - 0.01 * value)}
        for attack in study.ATTACKS:
            n = AUTOATTACK_IMAGES if attack == "autoattack" else TEST_IMAGES
            flags[attack] = packed(generator.random(n) < 0.25)
        runs.append({"variant": variant, "value": value, "seed": seed, "flags": flags})
    study.RESULTS.write_text(json.dumps({"runs": runs}))
    assert study.jobs(tmp_path)[:2] == [points[-1], ("trades", 4, 3)]
    found = study.frontier()
    assert [point.value for point in found.curves[0].points] == [2, 3, 4, 6, 9]
    assert [point.value for point in found.curves[-1].points] == [3, 4, 6]  # not that of two seeds
    at_six = found.curves[0].points[3]
    assert at_six.clean["pgd20"].seeds == study.FIRST
    assert 100 * at_six.accuracy("pgd20")[0] == pytest.approx(56.5, abs=1)  # stored, seeds 0 to 2
    assert {gap.attack for gap in found.compare()} == set(study.ATTACKS)


def test_a_method_with_one_point_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "RESULTS", tmp_path / "trade-off.json")
    study.RESULTS.write_text(json.dumps({"runs": []}))
    with pytest.raises(RattleError, match="TRADES"):
        study.frontier()
