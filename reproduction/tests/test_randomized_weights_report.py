"""The study of randomized weights: a rule chooses from a whole screening, and the report works on what is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reproduction.randomized_weights as study
from rattle.errors import RattleError
from reproduction.randomized_weights_report import checkpoints, main

WEIGHTS = {"trace filter 0.1": {"over_zeroth": 0.01}, "head 0.1": {"over_zeroth": 0.3}}
COLUMNS = ("clean", "pgd20", "cw20", "autoattack")
FLATNESS = ("lipschitz", "input_curvature", "weight_curvature", "noise_rise")


def screened(method: str, seed: int, accuracy: float) -> dict[str, Any]:
    checkpoint = dict.fromkeys(COLUMNS[:3], accuracy)
    return {"method": method, "seed": seed, "found": {"best": checkpoint, "last": checkpoint, "processor_seconds": 9.0}}


def decided(method: str, seed: int, share: float) -> dict[str, Any]:
    """Of the 1,000 images that share is right; the seed decides which."""
    flags = np.packbits(np.random.default_rng(seed).random(1000) < share).tobytes().hex()
    checkpoint = {"flags": dict.fromkeys(COLUMNS, flags), **dict.fromkeys(FLATNESS, share + 0.01 * seed)}
    return {"method": method, "seed": seed, "found": {"best": checkpoint, "last": checkpoint}}


def test_the_two_best_are_chosen_of_what_has_a_say_and_is_not_decided_anyway() -> None:
    aside = {"trades": 50.0, "awp": 60.0, "smoothing 0.1": 70.0, "head 0.2": 45.0, "trace filter 0.1": 80.0}
    high = {**aside, "head 0.1": 40.0, "inner 0.03": 41.0}
    runs = [screened(study.slug(name), seed, high.get(name, 30.0)) for name in study.VARIANTS for seed in (100, 101)]
    assert study.chosen(runs, study.candidates(WEIGHTS)) == ["inner 0.03", "head 0.1"]


def test_nothing_is_a_candidate_before_it_is_weighed() -> None:
    with pytest.raises(RattleError, match="--stage weigh first"):
        study.candidates({})


def test_nothing_is_chosen_while_a_missing_run_could_change_it() -> None:
    names, high = study.candidates(WEIGHTS), {"head 0.1": 40.0, "inner 0.03": 41.0, "inner 0.01": 39.5, "exact 1": 10.0}
    runs = [screened(study.slug(name), seed, high.get(name, 30.0)) for name in study.VARIANTS for seed in (100, 101)]

    def without(*names: str) -> list[dict[str, Any]]:
        return [run for run in runs if (run["method"], run["seed"]) not in [(study.slug(n), 101) for n in names]]

    with pytest.raises(RattleError, match=r"lacks runs that may change its choice.*: inner 0.01$"):
        study.chosen(without("inner 0.01", "exact 1"), names)  # 39.5 and 41 are more than 40 twice
    assert study.chosen(without("exact 1"), names) == ["inner 0.03", "head 0.1"]
    with pytest.raises(RattleError, match="lacks runs"):
        study.chosen([], names)


def test_the_report_names_what_earns_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"trades": 0.3, "smoothing-0.2": 0.1, "head-0.2": 0.3, "awp": 0.5, "awp-and-inner-0.03": 0.7}
    row = dict.fromkeys(("to_zeroth", "to_smoothing", "own", "lasts_low", "lasts", "lasts_high"), 0.5)
    stored = {
        "weights": {"head 0.2": row | {"over_zeroth": 0.4}, "trace filter 0.1": row | {"over_zeroth": 0.01}},
        "screened": [screened("trades", 100, 31.0), screened("inner-0.03", 100, 32.0)],
        "runs": [decided(method, seed, share) for method, share in shares.items() for seed in range(5)]
        + [decided("sampled-filter-0.05", 0, 0.3)],
    }
    (tmp_path / "study.json").write_text(json.dumps(stored))
    monkeypatch.setattr("sys.argv", ["", "--study", str(tmp_path / "study.json"), "--picture", str(tmp_path / "p.png")])
    main()
    text = (tmp_path / "study.md").read_text()
    assert text.index("| trace filter 0.1 | 0.01 |") < text.index("| head 0.2 | 0.4 | 0.50 |")
    assert "2 of 58 runs" in text
    assert text.index("| inner 0.03 | 1 | 32.00 |") < text.index("| trades | 1 | 31.00 |")
    assert "| sampled filter 0.05 | 1 | " in text
    assert "nan" not in text
    assert "| head 0.2 less trades | 5 | +0.0 [" in text
    assert "awp + inner 0.03 over awp (AutoAttack" in text
    assert "| head 0.2 less smoothing 0.2 | 5 | +2" in text
    assert "head 0.2 over" not in text  # not over TRADES or AWP
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_the_best_checkpoint_has_tables_of_its_own_unless_it_is_the_last_in_every_run() -> None:
    runs = [decided("trades", seed, 0.3) for seed in range(2)]
    assert checkpoints([]) == []
    assert checkpoints(runs) == ["last"]
    runs[1]["found"]["best"] = decided("trades", 1, 0.4)["found"]["best"]
    assert checkpoints(runs) == ["best", "last"]
