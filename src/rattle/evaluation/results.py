"""Results: one flag per image per attack, and the files that hold them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rattle.runs.io import write_atomically
from rattle.stats import wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """What one attack did to n images."""

    attack: dict[str, Any]  # its full settings
    flags: list[bool]  # robust, image by image
    seconds: float
    parts: dict[str, list[bool]] = field(default_factory=dict)  # of an ensemble: robust to this part and those before
    distances: list[float] = field(default_factory=list)  # of RayS: l_inf to the nearest adversarial point found

    @property
    def accuracy(self) -> float:
        return sum(self.flags) / len(self.flags)

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "settings": self.attack,
            **share("robust", self.flags),
            "seconds": self.seconds,
            "flags": ints(self.flags),
        }
        if self.parts:
            plain["parts"] = {name: share("robust", f) | {"flags": ints(f)} for name, f in self.parts.items()}
        if self.distances:
            plain |= {"adbd": sum(self.distances) / len(self.distances), "distances": self.distances}
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What every attack did to the same n images."""

    clean: list[bool]  # classified rightly, image by image
    verdicts: dict[str, AttackResult]
    advice: tuple[str, ...] = ()  # what may make these numbers unreliable

    @property
    def n(self) -> int:
        return len(self.clean)

    @property
    def clean_accuracy(self) -> float:
        return sum(self.clean) / self.n

    @property
    def worst_case(self) -> list[bool]:
        """Robust to every attack."""
        return [all(flags) for flags in zip(self.clean, *(v.flags for v in self.verdicts.values()), strict=True)]

    @property
    def robust_accuracy(self) -> float:
        return sum(self.worst_case) / self.n

    def to_plain(self) -> dict[str, Any]:
        """What results/*.json holds and --json prints: `robust` is the worst case over the attacks."""
        return {
            "n": self.n,
            **share("clean", self.clean),
            **share("robust", self.worst_case),
            "seconds": sum(v.seconds for v in self.verdicts.values()),
            "attacks": {name: verdict.to_plain() for name, verdict in self.verdicts.items()},
            "clean_flags": ints(self.clean),
            "advice": list(self.advice),
        }


def share(name: str, flags: Sequence[bool]) -> dict[str, Any]:
    """An accuracy and its Wilson 95 % interval."""
    interval = wilson(sum(flags), len(flags))
    return {f"{name}_accuracy": sum(flags) / len(flags), f"{name}_interval": [interval.low, interval.high]}


def ints(flags: Sequence[bool]) -> list[int]:
    return [int(flag) for flag in flags]


def save_results(result: Evaluation, told: dict[str, Any], folder: Path) -> Path:
    """One file an attack: the same object as for all of them, with that attack alone."""
    for name, verdict in result.verdicts.items():
        alone = replace(result, verdicts={name: verdict})
        write_atomically(folder / f"{name}.json", json.dumps(told | alone.to_plain()).encode())
        clear(folder, name)
    return folder


def kept_files(folder: Path, name: str, kind: str) -> list[Path]:
    """What was kept of one attack, and of no other whose name begins alike."""
    pattern = re.compile(rf"\.{re.escape(name)}\.\d+\.{re.escape(kind)}")
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))


def clear(folder: Path, name: str) -> None:
    """The verdicts are in their final place: what was kept on the way goes."""
    for kind in ("partial", "images.npy"):
        for path in kept_files(folder, name, kind):
            path.unlink(missing_ok=True)
