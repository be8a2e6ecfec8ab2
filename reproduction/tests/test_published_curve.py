"""The check of the loop by a published log runs, at a size that fits here, and tells a curve that is off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reproduction.published_curve import PUBLISHED, judge, main, recipe_of


def test_it_runs_on_a_few_images_and_gives_no_verdict_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    images = {f"x_{part}": rng.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 40), ("test", 10))}
    labels = {f"y_{part}": np.arange(n) % 10 for part, n in (("train", 40), ("test", 10))}
    np.savez(tmp_path / "few.npz", **images, **labels)
    shrunk = ["--images", "30", "--width", "4", "--epochs", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main([str(tmp_path / "few.npz"), *shrunk]) == 0
    said = capsys.readouterr().out
    assert "epoch 1: clean" in said
    assert "not comparable, no verdict" in said
    stored = json.loads((tmp_path / "run" / "curve.json").read_text())
    assert list(stored["curve"]) == ["1", "2"]
    assert all(0 <= robust <= clean <= 100 for clean, robust in stored["curve"].values())


def test_the_settings_are_the_published_ones() -> None:
    recipe = recipe_of("cifar10")
    attack = recipe.attack
    assert (attack.threat.norm, attack.threat.epsilon, attack.steps) == ("linf", 8 / 255, 10)
    assert (attack.step_size, attack.loss, attack.start) == (2 / 255, "ce", "uniform")
    assert (recipe.optimizer.lr, recipe.optimizer.momentum, recipe.optimizer.weight_decay) == (0.1, 0.9, 5e-4)
    assert (recipe.batch_size, recipe.data.val_size, recipe.normalise, recipe.noise.sigma) == (128, 0, True, 0)
    assert (recipe.data.augment.pad, recipe.data.augment.flip) == (4, True)
    assert [recipe.schedule(t) for t in (0, 0.5, 0.9)] == [1, 1, 1]
    assert recipe.steps(50_000) == 391


def test_a_curve_that_is_off_is_told() -> None:
    published = PUBLISHED
    assert not judge(published)
    assert len(judge(published | {5: (published[5][0] + 6, published[5][1] - 4)})) == 2
    assert not judge({1: published[1]})


def test_data_that_are_not_there_end_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.npz"), "--out", str(tmp_path / "run")]) == 2
    assert "none.npz" in capsys.readouterr().err
