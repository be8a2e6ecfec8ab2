"""The study of bf16: its recipes, and differences to the stored runs in float32."""

import json
from pathlib import Path

import numpy as np
import pytest

import reproduction.bf16_study as study
from reproduction.study import packed, unpacked
from reproduction.trade_off import flags_at_six


def test_differences_are_paired_with_the_runs_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, lost = [], 40  # of each 10,000 clean images
    for seed, stored in flags_at_six("trades").items():
        clean = unpacked(stored["clean"], 10_000)
        clean[np.flatnonzero(clean)[:lost]] = False
        runs.append({"variant": "trades", "seed": seed, "flags": {**stored, "clean": packed(clean.tolist())}})
    monkeypatch.setattr(study, "RESULTS", tmp_path / "bf16-study.json")
    assert study.jobs(tmp_path)[:2] == [("trades", 0), ("head 0.2", 0)]
    study.RESULTS.write_text(json.dumps({"runs": runs}))
    assert study.jobs(tmp_path)[0] == ("head 0.2", 0)
    gaps = study.differences(runs)["trades"]
    assert (gaps["clean"].n, 100 * gaps["clean"].mean) == (5, pytest.approx(-0.4))
    assert gaps["autoattack"].mean == 0
    study.report()
    assert "-0.40" in capsys.readouterr().out
