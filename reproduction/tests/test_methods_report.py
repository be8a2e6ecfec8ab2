"""The report of the study of all methods works on as many runs as there are, and names those that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction.methods_report import main


def run(method: str, seed: int, share: float) -> dict[str, Any]:
    """A finished run of which that share of 1,000 images is right, under every attack."""
    flags = np.packbits(np.random.default_rng(seed).random(1000) < share).tobytes().hex()
    columns = dict.fromkeys(("clean", "pgd20", "cw20", "autoattack"), flags)
    return {"method": method, "seed": seed, "found": {"last": {"epochs": 3, "flags": columns}}}


def report(folder: Path, monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]]) -> str:
    (folder / "study.json").write_text(json.dumps({"runs": runs, "cost": {"trades": 1.0}}))
    words = ["", "--study", folder / "study.json", "--picture", folder / "p.png", "--costs", folder / "none.json"]
    monkeypatch.setattr("sys.argv", list(map(str, words)))
    main()
    assert (folder / "p.png").stat().st_size > 1000
    return (folder / "study.md").read_text()


def test_one_seed_has_an_interval_over_images_and_no_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = report(tmp_path, monkeypatch, [run("trades", 0, 0.4), run("pang", 0, 0.5)])
    assert "2 of 105 runs. Missing are seeds 0, 1, 2: at, standard," in text
    assert "seeds 1, 2: trades, pang" in text
    assert "| TRADES | 1 | 1.00 | 3 | 3" in text
    assert "| TRADES (pang) | 1 | - | 3 |" in text
    assert "nothing is compared" in text


def test_methods_are_compared_with_trades_on_the_seeds_that_both_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run("trades", seed, 0.3) for seed in (0, 1, 2)] + [run("mart", seed, 0.5) for seed in (1, 2)]
    text = report(tmp_path, monkeypatch, runs)
    assert "| less TRADES | seeds |" in text
    assert "| MART | 2 | +2" in text or "| MART | 2 | +1" in text
    assert "seeds 0: mart" in text
