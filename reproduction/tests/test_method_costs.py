"""The costs of a step of each method: no more work than its passes demand, and memory that is counted."""

from __future__ import annotations

from typing import Any

import pytest

from reproduction.method_costs import measure

pytestmark = pytest.mark.slow
NAMES = ("trades", "at", "hat", "trades-2nd")


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in measure(NAMES, batch=16, rounds=1)}


@pytest.mark.parametrize("name", NAMES)
def test_no_step_does_more_work_than_its_passes_demand(rows: dict[str, dict[str, Any]], name: str) -> None:
    assert 0 < rows[name]["done"] <= 1.01 * rows[name]["demanded"]


def test_memory_is_counted_and_larger_with_more_graphs(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["at"]["mb"] > 0.1
    assert rows["at"]["memory"] < 0.7  # one graph where TRADES has two
    assert rows["hat"]["memory"] > 1.2  # and HAT three
    assert rows["trades-2nd"]["memory"] < 1.1
    assert rows["trades"]["over_trades"]["median"] == 1
