"""What the last release promised (docs/guides/stability.md) is still there, or announced as removed."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

import rattle
from release.surface import surface

HERE = Path(__file__).parent
FIRST, *PROMISED = (HERE / "promised.txt").read_text(encoding="utf-8").splitlines()
REMOVED = (HERE / "removed.txt").read_text(encoding="utf-8").splitlines()[1:]


def test_the_promises_are_of_this_version() -> None:
    assert f" rattle {rattle.__version__} " in FIRST, "write them anew, see tests/release/surface.py"
    assert len(PROMISED) > 500
    assert sorted(set(PROMISED)) == PROMISED


@pytest.mark.filterwarnings("ignore::UserWarning")  # a network after one epoch on 40 images is warned of
def test_nothing_that_was_promised_is_gone_unannounced() -> None:
    there = {*surface()}
    gone = [line for line in PROMISED if line not in there]
    unannounced = [line for line in gone if not any(fnmatch(line, pattern) for pattern in REMOVED)]
    assert not unannounced, "see docs/guides/stability.md, *Deprecation*"
    still_there = [pattern for pattern in REMOVED if not any(fnmatch(line, pattern) for line in gone)]
    assert not still_there, "removed.txt announces what is not gone"
