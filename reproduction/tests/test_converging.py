"""The stored curves of reproduction/studies/converging.md pass its protocol, and curves that are off do not."""

import copy
import json
from pathlib import Path

import pytest

from reproduction.converging import judge

ROOT = Path(__file__).parents[2]


@pytest.fixture
def curves() -> dict:
    return json.loads((ROOT / "reproduction" / "results" / "converging-digits.json").read_text())["curves"]


def test_the_stored_curves_pass(curves: dict, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(curves, curves)
    said = capsys.readouterr().out
    assert "differ by at most 7.4e-16" in said
    assert "at most 7.4e-16" in (ROOT / "docs" / "studies" / "converging.md").read_text()


@pytest.mark.parametrize(("network", "by"), [("cnn-plain", 1e-5), ("cnn", 0.1)])
def test_a_loss_that_differs_on_two_ranks_does_not_pass(curves: dict, network: str, by: float) -> None:
    for epochs in curves["2"][network]:
        epochs[-1]["loss"] += by
    assert not judge(curves, None)


def test_a_loss_that_was_another_before_does_not_pass(curves: dict) -> None:
    before = copy.deepcopy(curves)
    for ranks in before.values():
        ranks["cnn-plain"][0][0]["loss"] *= 1.001
    assert not judge(curves, before)
