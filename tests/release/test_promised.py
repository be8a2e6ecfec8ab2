"""What the last release promised (docs/guides/stability.md) is still there."""

from pathlib import Path

import pytest

import rattle
from release.surface import surface

FIRST, *PROMISED = (Path(__file__).parent / "promised.txt").read_text(encoding="utf-8").splitlines()


def test_the_promises_are_of_this_version() -> None:
    assert f" rattle {rattle.__version__} " in FIRST, "write them anew, see tests/release/surface.py"
    assert len(PROMISED) > 500
    assert sorted(set(PROMISED)) == PROMISED


@pytest.mark.filterwarnings("ignore::UserWarning")  # a network after one epoch on 40 images is warned of
def test_nothing_that_was_promised_is_gone() -> None:
    there = {*surface()}
    gone = [line for line in PROMISED if line not in there]
    assert not gone, f"see docs/guides/stability.md, *Deprecation*: {gone}"
