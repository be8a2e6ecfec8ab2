"""Every call of ours in docs/guides/coming-from.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import rattle.integrations
import rattle.models

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "coming-from.md").read_text(encoding="utf-8")
SHORTER = {  # a network that is made quickly, few epochs and queries, a part of AutoAttack
    'create_model("wrn34-10", classes=10)': 'create_model("cnn", classes=10, channels=1, width=4)',
    'norm="linf", epsilon=eps)': 'norm="linf", epsilon=eps, attacks="apgd-ce")',
    "epochs=200": "epochs=1",
    "queries=5000)": "queries=20)",
}
CALLS = re.findall(r"\| `((?:rattle|torch)\.[^|]+)` \|$", PAGE, re.MULTILINE)


def test_the_page_has_calls_for_each_tool() -> None:
    assert len(CALLS) >= 20
    assert all(any(long in call for call in CALLS) for long in SHORTER)
    assert PAGE.count("\n## ") == 5


@pytest.mark.parametrize("call", CALLS)
def test_our_call_runs(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.save(rattle.create_model("cnn", classes=10, channels=1, width=4).state_dict(), "theirs.pt")
    model = rattle.create_model("cnn", classes=10, channels=1, width=4)
    x, y = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    for long, short in SHORTER.items():
        call = call.replace(long, short)
    assert eval(call, {"rattle": rattle, "torch": torch, "model": model, "x": x, "y": y, "eps": 8 / 255}) is not None
