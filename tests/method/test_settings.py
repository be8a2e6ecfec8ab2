"""Bounds in annotations are held by one checker; registries answer without torch."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest

from rattle.errors import RattleError
from rattle.settings import Between, Bound, Count, NonNegative, Positive, Share, check_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    rate: Positive = 0.1
    sigma: NonNegative = 0.0
    share: Share = 1.0
    inside: Between | None = None
    drops: tuple[Between, ...] = (0.5,)
    steps: Count = 10
    odd: Annotated[float, Bound(above=1, most=3)] = 2.0

    def __post_init__(self) -> None:
        check_settings(self, "example")


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"rate": "fast"},
        {"sigma": -1e-9},
        {"share": 1.5},
        {"inside": 0.0},
        {"drops": (0.5, 1.0)},
        {"steps": 0},
        {"steps": 10**7},
        {"steps": True},
        {"steps": 1.5},
        {"odd": 1},
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(wrong: dict) -> None:
    with pytest.raises(RattleError, match=f"example.{next(iter(wrong))} must be"):
        Example(**wrong)


def test_values_on_the_bounds_pass() -> None:
    Example(sigma=0, share=0, inside=None, drops=(), steps=1, odd=3)


@pytest.mark.process
def test_settings_and_registries_need_no_torch() -> None:
    code = "import sys, rattle.settings, rattle.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
