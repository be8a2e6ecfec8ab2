"""The study of plain AT: how K is chosen, and that what was gathered is not trained again."""

import argparse
import json
from pathlib import Path

import pytest

import reproduction.plain_at as study


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
