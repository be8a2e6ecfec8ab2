"""Readings of the Taylor terms: how they are computed, one file each, by the name that `objective.taylor.mode` gives.

One line here adds one; `register_reading` does it at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rattle.registry import Entry, Registry

if TYPE_CHECKING:
    from rattle.objectives.readings.base import Reading

READINGS: Registry[Reading] = Registry(
    "objective.taylor.mode",
    {
        "head": Entry(".head:HEAD", "soft labels from the head's gradients (paper)"),
        "smoothing": Entry(".smoothing:SMOOTHING", "the same with constant soft labels"),
        "exact": Entry(".exact:EXACT", "derivatives of the logits along u"),
        "sampled": Entry(".sampled:SAMPLED", "the method's own loss at w + u"),
    },
    package="rattle.objectives.readings",
)


def register_reading(name: str, reading: Reading) -> None:
    """Let recipes name a reading of your own as `objective.taylor.mode`."""
    READINGS.add(name, reading)
