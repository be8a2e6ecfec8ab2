"""Results: one flag an image and attack, and the files that hold them. Everything that reads or writes them is here.

Robust accuracy is the mean of an attack's flags; the worst case over attacks is their AND. No torch.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rattle.errors import RattleError
from rattle.recipes.reading import parse_json, tidy
from rattle.recipes.schema import flatten
from rattle.runs.io import Plain, read_json, write_atomically
from rattle.runs.paths import Run
from rattle.stats import wilson

MODEL_KEYS = ("name", "checkpoint", "recipe")  # of a result file: what the model is called, its weights, its recipe
IDENTITY = ("kind", "norm", "epsilon")  # settings without which it is not known what an attack was


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """What one attack did to n images."""

    settings: dict[str, Any]  # of the attack, with its class as `kind`
    flags: list[bool]  # correct before and after the attack, image by image
    seconds: float
    parts: dict[str, list[bool]] = field(default_factory=dict)  # of an ensemble: flags after this part
    part_seconds: dict[str, float] = field(default_factory=dict)  # of an ensemble: what each part took
    distances: list[float] = field(default_factory=list)  # of an attack that measures them: to the nearest point found

    @property
    def accuracy(self) -> float:
        return sum(self.flags) / len(self.flags)

    @property
    def mean_distance(self) -> float:
        """The average decision boundary distance (ADBD)."""
        return sum(self.distances) / len(self.distances)

    def to_plain(self) -> Plain:
        plain = {"settings": self.settings, "n": len(self.flags), "seconds": self.seconds, **robust(self.flags)}
        if self.parts:
            plain["parts"] = {
                name: robust(flags) | {"seconds": self.part_seconds.get(name, 0.0)}
                for name, flags in self.parts.items()
            }
        if self.distances:
            plain |= {"adbd": self.mean_distance, "distances": self.distances}
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What every attack did to the same images."""

    clean: list[bool]  # correct without an attack, image by image
    attacks: dict[str, AttackResult]  # each of all images, or of as many of the first as `within` asked for
    index: list[int] | None = None  # the images' numbers in their dataset; None: the first n of it
    images: list[str] | None = None  # their checksums, by which results are paired; None where no file is written
    warnings: tuple[str, ...] = ()  # what may make these numbers unreliable
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what else the result files say: checkpoint, data, ...

    @property
    def n(self) -> int:
        return len(self.clean)

    @property
    def clean_accuracy(self) -> float:
        return sum(self.clean) / self.n

    @property
    def worst_case(self) -> list[bool]:
        """Correct under every attack; of the images that every attack was run on."""
        return [all(flags) for flags in zip(self.clean, *(a.flags for a in self.attacks.values()), strict=False)]

    @property
    def robust_accuracy(self) -> float:
        return sum(self.worst_case) / len(self.worst_case)

    def alone(self, name: str) -> "Evaluation":
        """One attack and the images it was run on."""
        attack = self.attacks[name]
        n = len(attack.flags)
        return replace(
            self,
            clean=self.clean[:n],
            attacks={name: attack},
            index=self.index and self.index[:n],
            images=self.images and self.images[:n],
        )

    def records(self) -> list[Plain]:
        """A flat row for the clean images, each attack and each part of an ensemble, for a table or a data frame."""
        rows = [record("clean", self.clean, 0.0)]
        for name, attack in self.attacks.items():
            rows.append(record(name, attack.flags, attack.seconds))
            for part, flags in attack.parts.items():
                rows.append(record(f"{name}: {part}", flags, attack.part_seconds.get(part, 0.0)))
        return rows

    def __str__(self) -> str:
        """A small table: accuracy in percent with its 95 % interval, n, and seconds; then the warnings."""
        records = self.records()
        width = max(len("attack"), *(len(row["attack"]) for row in records))
        digits = len(str(self.n))
        lines = [f"{'attack':{width}}  accuracy, %  95 % interval  {'n':>{digits}}  seconds"]
        for row in records:
            interval = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
            lines.append(
                f"{row['attack']:{width}}  {100 * row['accuracy']:11.1f}  {interval:>13}  {row['n']:{digits}}  "
                f"{row['seconds']:7.1f}"
            )
        return "\n".join([*lines, *(f"warning: {sentence}" for sentence in self.warnings)])

    def to_plain(self) -> Plain:
        """What a result file holds and `--json` prints: `robust` is the worst case over the attacks."""
        plain = {
            **self.metadata,
            "n": self.n,
            **share("clean", self.clean),
            **share("robust", self.worst_case),
            "seconds": sum(a.seconds for a in self.attacks.values()),
            "attacks": {name: a.to_plain() for name, a in self.attacks.items()},
            "clean_flags": list(map(int, self.clean)),
        }
        if self.index is not None:
            plain["index"] = self.index
        if self.images is not None:
            plain["images"] = self.images
        return plain | {"advice": list(self.warnings)}


def record(name: str, flags: Sequence[bool], seconds: float) -> Plain:
    interval = wilson(sum(flags), len(flags))
    accuracy = {"accuracy": sum(flags) / len(flags), "low": interval.low, "high": interval.high}
    return {"attack": name, "n": len(flags), **accuracy, "seconds": seconds}


def share(name: str, flags: Sequence[float]) -> Plain:
    """An accuracy and its Wilson 95 % interval, as two entries whose keys begin with `name`."""
    interval = wilson(int(sum(flags)), len(flags))
    return {f"{name}_accuracy": sum(flags) / len(flags), f"{name}_interval": [interval.low, interval.high]}


def robust(flags: Sequence[bool]) -> Plain:
    """Robust accuracy, its interval, and a flag an image."""
    return share("robust", flags) | {"flags": list(map(int, flags))}


def check_name(name: str) -> str:
    """The name of an attack, refused if it cannot be part of a file name."""
    if not re.fullmatch(r"[\w.,+=-]+", name):
        raise RattleError(f"{name!r} is no name for an attack: its results are stored under it")
    return name


def save_results(result: Evaluation, folder: Path) -> None:
    """Write ATTACK.json for each attack: what `Evaluation.to_plain` gives for that attack alone."""
    for name in result.attacks:
        plain = result.alone(name).to_plain()
        write_atomically(folder / f"{check_name(name)}.json", json.dumps(plain, default=str).encode())


def curve_to_plain(attack: str, points: Mapping[float, Sequence[bool]]) -> Plain:
    """Accuracy, interval and flags at each epsilon."""
    return {"attack": attack, "points": [{"epsilon": e, **robust(flags)} for e, flags in points.items()]}


def save_curve(attack: str, points: Mapping[float, Sequence[bool]], metadata: Mapping[str, Any], folder: Path) -> None:
    """Write ATTACK-curve.json."""
    plain = {**metadata, "curve": curve_to_plain(attack, points)}
    write_atomically(folder / f"{check_name(attack)}-curve.json", json.dumps(plain).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """One attack's part of a result file."""

    attack: str
    settings: Plain
    flags: tuple[int, ...]
    clean: tuple[int, ...]  # as many
    data: str  # the images' source; "" in files that do not say
    index: tuple[int, ...] = ()  # the images' numbers in it
    images: tuple[str, ...] = ()  # their checksums; none in files of earlier versions
    model: Mapping[str, str] = field(default_factory=dict)  # what the file says of it, of MODEL_KEYS

    @property
    def protocol(self) -> str:
        """How the images were attacked; results are comparable where `protocol_differences` finds nothing."""
        return json.dumps({"attack": self.attack, **self.settings})

    @property
    def places(self) -> tuple[str, ...]:
        """Each image by its dataset and number, to identify images where a file has no checksums."""
        return tuple(f"{self.data}:{i}" for i in self.index)

    @property
    def epsilon(self) -> float | None:
        threat = self.settings.get("threat")
        value = threat.get("epsilon") if isinstance(threat, dict) else None
        return float(value) if isinstance(value, (int, float)) else None


def load_results(folder: Path) -> tuple[dict[str, StoredResult], list[str]]:
    """The results of a folder by attack, and a sentence about each file that is damaged.

    Other files there, such as flatness.json and curves, are not results and are left alone.
    """
    found: dict[str, StoredResult] = {}
    notes: list[str] = []
    for path in sorted(folder.glob("*.json")):
        plain = read_json(path, notes) if path.name != Run.flatness.name else None
        if plain is None or not isinstance(plain.get("attacks"), dict):
            continue
        try:
            found |= {name: stored_result(plain, name) for name in plain["attacks"]}
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            notes.append(f"{folder.name}/{path.name} does not hold one flag per image and was left out")
    return found, notes


def stored_result(plain: Plain, name: str) -> StoredResult:
    """One attack of a result file; if that is damaged, one of the errors that `load_results` catches."""
    entry = plain["attacks"][name]
    found = StoredResult(
        attack=name,
        settings=dict(tidy(entry.get("settings") or {})),
        flags=tuple(map(int, entry["flags"])),
        clean=tuple(map(int, plain["clean_flags"])),
        data=str(plain.get("data") or ""),
        index=tuple(map(int, plain.get("index", range(len(entry["flags"]))))),  # version 0.1 always took the first n
        images=tuple(map(str, plain.get("images") or ())),
        model={key: str(plain[key]) for key in MODEL_KEYS if plain.get(key)},
    )
    n = len(found.flags)
    if n == 0 or len(found.clean) != n or len(found.index) != n or len(found.images) not in (0, n):
        raise ValueError(name)
    if not {*found.flags, *found.clean} <= {0, 1}:
        raise ValueError(name)
    return found


def protocol_differences(one: str, other: str) -> list[str]:
    """In what two protocols of `StoredResult` differ, each as "name (one; other)"; nothing if results are comparable.

    A setting that one of them lacks, as another version wrote it, does not count, unless it says which attack or threat
    this is.
    """
    if one == other:
        return []
    ours, theirs = flatten(json.loads(one)), flatten(json.loads(other))
    found = []
    for key in ours | theirs:
        shared = key in ours and key in theirs
        first, second = ours.get(key), theirs.get(key)
        if (shared or key.rpartition(".")[2] in IDENTITY) and not equal_settings(first, second):
            found.append(f"{key} ({setting_text(first)}; {setting_text(second)})")
    return found


def equal_settings(a: Any, b: Any) -> bool:
    """Numbers up to the rounding of their text."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b


def setting_text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_result(path: Path, name: str, key: str) -> Plain | None:
    """A result file whose `mark` is this cache key; None for any other, or one that is missing or damaged."""
    try:
        plain = parse_json(path.read_text(encoding="utf-8"))
        return plain if plain["mark"] == key and plain["attacks"][name]["flags"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
