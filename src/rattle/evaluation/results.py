"""Results: one flag an image and attack, and the files that hold them. Everything that reads or writes them is here.

Robust accuracy is the mean of an attack's flags; the worst case over attacks is their AND. No torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from rattle.errors import RattleError
from rattle.evaluation.calibration import Calibration, Values, calibration
from rattle.evaluation.classes import WorstClass, worst_class
from rattle.recipes.reading import parse_json, tidy
from rattle.runs.io import Plain, read_json, write_json
from rattle.runs.paths import Run
from rattle.stats import mean_interval

Flags = list[bool] | list[float]  # correct or not, image by image; rates of a random model
MODEL_KEYS = ("name", "checkpoint", "recipe")  # of a result file: what the model is called, its weights, its recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How the rates of a random model were measured, and what else its draws showed, image by image."""

    count: int  # K, fresh ones for a rate; a quarter where the pilot's were all of one mind
    eot: int  # that attacks averaged over
    error: float  # standard error of the mean rate by the draws, which images may share
    pilot: list[float]  # rates by other draws, by which points are chosen
    majority: list[bool]  # correct by the vote of the fresh draws
    passes: float = 0.0  # of the model through an attack, for each image

    def to_plain(self) -> Plain:
        vote = fmean(self.majority)
        return asdict(self) | {"majority_accuracy": vote, "majority": list(map(int, self.majority))}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AttackResult:
    """What one attack did to n images."""

    settings: Plain  # of the attack, with its class as `kind`
    flags: Flags  # correct before and after the attack, image by image; rates of a random model
    seconds: float
    parts: dict[str, Flags] = field(default_factory=dict)  # of an ensemble: flags after this part
    part_seconds: dict[str, float] = field(default_factory=dict)  # of an ensemble: what each part took
    confidence: list[float] = field(default_factory=list)  # in the class that an attacked image is taken for
    distances: list[float] = field(default_factory=list)  # of an attack that measures them: to the nearest point found
    draws: Draws | None = None  # of a random model

    @property
    def accuracy(self) -> float:
        return fmean(self.flags)

    @property
    def error(self) -> float:
        """Standard error by the draws; 0 if there are none."""
        return self.draws.error if self.draws else 0.0

    @property
    def mean_distance(self) -> float:
        """The average decision boundary distance (ADBD)."""
        return sum(self.distances) / len(self.distances)

    def __repr__(self) -> str:
        return f"AttackResult({100 * self.accuracy:.1f} % robust, n {len(self.flags)})"

    def to_plain(self) -> Plain:
        plain = {
            "settings": self.settings,
            "n": len(self.flags),
            "seconds": self.seconds,
            **robust_figures(self.flags, self.error),
        }
        if self.parts:
            plain["parts"] = {
                name: robust_figures(flags) | {"seconds": self.part_seconds.get(name, 0.0)}
                for name, flags in self.parts.items()
            }
        if self.confidence:
            plain["confidence"] = self.confidence
        if self.distances:
            plain |= {"adbd": self.mean_distance, "distances": self.distances}
        if self.draws:
            plain["draws"] = self.draws.to_plain()
        return plain


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Evaluation:
    """What every attack did to the same images."""

    clean: Flags  # correct without an attack, image by image; rates of a random model
    attacks: dict[str, AttackResult]  # each of all images, or of as many of the first as `within` asked for
    confidence: list[float] = field(default_factory=list)  # in the class that an image is taken for, without an attack
    labels: list[int] | None = None  # the images' classes
    index: list[int] | None = None  # the images' numbers in their dataset; None: the first n of it
    images: list[str] | None = None  # their checksums, by which results are paired; None where no file is written
    warnings: tuple[str, ...] = ()  # what may make these numbers unreliable
    draws: Draws | None = None  # of a random model, on the clean images
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what else the result files say: checkpoint, data, ...

    @property
    def n(self) -> int:
        return len(self.clean)

    @property
    def clean_accuracy(self) -> float:
        return fmean(self.clean)

    @property
    def worst_case(self) -> Flags:
        """Correct under every attack; of a random model the rate at the point whose pilot rate is lowest."""
        if self.draws:
            known = [(self.draws.pilot, self.clean)]
            known += [(a.draws.pilot, a.flags) for a in self.attacks.values() if a.draws]
            rates = []
            for i in range(self.n):
                _, lowest = min(known, key=lambda each: each[0][i])
                rates.append(lowest[i])
            return rates
        # with `within` each attack ends where it is known well enough: the images that all of them were run on
        return [all(flags) for flags in zip(self.clean, *(a.flags for a in self.attacks.values()), strict=False)]

    @property
    def robust_accuracy(self) -> float:
        return fmean(self.worst_case)

    def alone(self, name: str) -> "Evaluation":
        """One attack and the images it was run on."""
        attack = self.attacks[name]
        n = len(attack.flags)
        return replace(
            self,
            clean=self.clean[:n],
            confidence=self.confidence[:n],
            attacks={name: attack},
            labels=self.labels and self.labels[:n],
            index=self.index and self.index[:n],
            images=self.images and self.images[:n],
        )

    @property
    def error(self) -> float:
        """Standard error of the clean accuracy by the draws; 0 if there are none."""
        return self.draws.error if self.draws else 0.0

    @property
    def worst_error(self) -> float:
        """The same of the robust accuracy: no more than that of the attack whose draws differ most."""
        return max([self.error, *(attack.error for attack in self.attacks.values())])

    def records(self) -> list[Plain]:
        """A flat row for the clean images, each attack and each part of an ensemble, for a table or a data frame."""
        rows = [attack_record("clean", self.clean, 0.0, self.error)]
        for name, attack in self.attacks.items():
            rows.append(attack_record(name, attack.flags, attack.seconds, attack.error))
            for part, flags in attack.parts.items():
                rows.append(attack_record(f"{name}: {part}", flags, attack.part_seconds.get(part, 0.0), attack.error))
        return rows

    def __repr__(self) -> str:
        shares = [f"{row['attack']} {100 * row['accuracy']:.1f} %" for row in self.records()]
        return f"Evaluation({', '.join(shares)}, n {self.n})"

    def _repr_html_(self) -> str:
        """The table of `__str__` for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

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
        lines += filter(None, (self.worst_classes(), self.calibration_errors()))
        return "\n".join([*lines, *(f"warning: {sentence}" for sentence in self.warnings)])

    def worst_class(self, name: str) -> WorstClass | None:
        """The class that does worst under an attack, or `clean`; None where classes have few images."""
        return worst_class(self.clean if name == "clean" else self.attacks[name].flags, self.labels or ())

    def calibration(self, name: str) -> Calibration | None:
        """Confidences against accuracies under an attack, or `clean`; None where they are not known."""
        if name == "clean":
            return calibration(tuple(self.confidence), tuple(self.clean))
        return calibration(tuple(self.attacks[name].confidence), tuple(self.attacks[name].flags))

    def beyond(self, name: str) -> Plain:
        """What the mean hides, under an attack or `clean`, as plain data: the worst class and the calibration."""
        found = {"worst_class": self.worst_class(name), "calibration": self.calibration(name)}
        return {key: value.to_plain() for key, value in found.items() if value}

    def worst_classes(self, names: Sequence[str] = ()) -> str:
        """The class that does worst, without and under each attack, in a line; empty where classes have few images."""
        found = []
        for name in ("clean", *self.attacks):
            if worst := self.worst_class(name):
                share = f"{100 * worst.accuracy:.1f} % {worst.interval.percent()}"
                label = names[worst.label] if names else worst.label
                found.append(f"{name} {share} of {worst.n} ({label}; best class {100 * worst.best:.1f} %)")
        return f"worst class: {', '.join(found)}" if found else ""

    def calibration_errors(self) -> str:
        """The expected calibration error, without and under each attack, in a line; empty where it is not known."""
        found = []
        for name in ("clean", *self.attacks):
            if known := self.calibration(name):
                found.append(f"{name} {100 * known.error:.1f} % {known.interval.percent()}")
        return f"calibration error: {', '.join(found)}" if found else ""

    def to_plain(self) -> Plain:
        """What a result file holds and `--json` prints: `robust` is the worst case over the attacks."""
        plain = {
            **self.metadata,
            "n": self.n,
            **share("clean", self.clean, self.error),
            **share("robust", self.worst_case, self.worst_error),
            "seconds": sum(a.seconds for a in self.attacks.values()),
            "attacks": {name: a.to_plain() | self.beyond(name) for name, a in self.attacks.items()},
            "clean_flags": numbers(self.clean),
        }
        for key, value in self.beyond("clean").items():
            plain[f"clean_{key}"] = value
        if self.confidence:
            plain["clean_confidence"] = self.confidence
        for key in ("labels", "index", "images"):
            if getattr(self, key) is not None:
                plain[key] = getattr(self, key)
        if self.draws:
            plain["draws"] = self.draws.to_plain()
        return plain | {"advice": list(self.warnings)}


def attack_record(name: str, flags: Sequence[float], seconds: float, error: float) -> Plain:
    interval = mean_interval(flags, error)._asdict()
    return {"attack": name, "n": len(flags), "accuracy": fmean(flags), **interval, "seconds": seconds}


def share(name: str, flags: Sequence[float], error: float = 0.0) -> Plain:
    """An accuracy and its 95 % interval, as two entries whose keys begin with `name`; error: by draws."""
    interval = list(mean_interval(flags, error))
    return {f"{name}_accuracy": fmean(flags), f"{name}_interval": interval}


def robust_figures(flags: Sequence[float], error: float = 0.0) -> Plain:
    """Robust accuracy, its interval, and a flag or rate an image."""
    return share("robust", flags, error) | {"flags": numbers(flags)}


def numbers(flags: Sequence[float]) -> list[float]:
    """Flags as 0 and 1, rates as they are."""
    return [flag if isinstance(flag, float) else int(flag) for flag in flags]


def check_name(name: str) -> str:
    """The name of an attack, refused if it cannot be part of a file name."""
    if not re.fullmatch(r"[\w.,+=-]+", name):
        raise RattleError(f"{name!r} is no name for an attack: its results are stored under it")
    return name


def save_results(result: Evaluation, folder: Path) -> None:
    """Write ATTACK.json for each attack: what `Evaluation.to_plain` gives for that attack alone."""
    for name in result.attacks:
        plain = result.alone(name).to_plain()
        write_json(folder / f"{check_name(name)}.json", plain, default=str)


def curve_to_plain(attack: str, points: Mapping[float, Sequence[bool]]) -> Plain:
    """Accuracy, interval and flags at each epsilon."""
    return {"attack": attack, "points": [{"epsilon": e, **robust_figures(flags)} for e, flags in points.items()]}


def save_curve(attack: str, points: Mapping[float, Sequence[bool]], metadata: Mapping[str, Any], folder: Path) -> None:
    """Write ATTACK-curve.json."""
    plain = {**metadata, "curve": curve_to_plain(attack, points)}
    write_json(folder / f"{check_name(attack)}-curve.json", plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """One attack's part of a result file."""

    attack: str
    settings: Plain
    flags: Values  # 0 or 1; rates of a random model
    clean: Values  # as many
    data: str  # the images' source; "" in files that do not say
    index: tuple[int, ...] = ()  # the images' numbers in it
    images: tuple[str, ...] = ()  # their checksums; none in files of earlier versions
    labels: tuple[int, ...] = ()  # their classes; none in files of earlier versions
    model: Mapping[str, str] = field(default_factory=dict)  # what the file says of it, of MODEL_KEYS
    confidence: Values = ()  # at the attacked images; none in files of earlier versions
    clean_confidence: Values = ()
    error: float = 0.0  # standard error of the mean of `flags` by the draws of a random model
    clean_error: float = 0.0
    draws: int = 0  # fresh ones that a rate of a random model was measured by
    eot: int = 0  # that attacks on it averaged over

    @property
    def unattacked(self) -> "StoredResult":
        """The same of the clean images."""
        values = {"flags": self.clean, "confidence": self.clean_confidence, "error": self.clean_error}
        return replace(self, attack="clean", settings={}, eot=0, **values)

    @property
    def protocol(self) -> str:
        """How the images were attacked; results are comparable where `protocol_differences` finds nothing."""
        own = {"eot": self.eot} if self.eot else {}
        return json.dumps({"attack": self.attack, **self.settings, **own})

    @property
    def places(self) -> tuple[str, ...]:
        """Each image by its dataset and number, to identify images where a file has no checksums."""
        return tuple(f"{self.data}:{i}" for i in self.index)

    @property
    def epsilon(self) -> float | None:
        threat = self.settings.get("threat")
        value = threat.get("epsilon") if isinstance(threat, dict) else None
        return float(value) if isinstance(value, (int, float)) else None


Results = Mapping[str, StoredResult]  # by attack


def load_results(folder: Path) -> tuple[dict[str, StoredResult], list[str]]:
    """The results of a folder by attack, and a sentence about each file that is damaged.

    Other files there, such as flatness.json and curves, are not results and are left alone.
    """
    found = {}
    notes = []
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
    entry, random = plain["attacks"][name], "draws" in plain
    number = float if random else int
    found = StoredResult(
        attack=name,
        settings=dict(tidy(entry.get("settings") or {})),
        flags=tuple(map(number, entry["flags"])),
        clean=tuple(map(number, plain["clean_flags"])),
        data=str(plain.get("data") or ""),
        index=tuple(map(int, plain.get("index", range(len(entry["flags"]))))),  # version 0.1 always took the first n
        images=tuple(map(str, plain.get("images") or ())),
        labels=tuple(map(int, plain.get("labels") or ())),
        confidence=tuple(map(float, entry.get("confidence") or ())),
        clean_confidence=tuple(map(float, plain.get("clean_confidence") or ())),
        model={key: str(plain[key]) for key in MODEL_KEYS if plain.get(key)},
        error=float(entry["draws"]["error"]) if random else 0.0,
        clean_error=float(plain["draws"]["error"]) if random else 0.0,
        draws=int(entry["draws"]["count"]) if random else 0,
        eot=int(entry["draws"]["eot"]) if random else 0,
    )
    n = len(found.flags)
    absent = (found.images, found.labels, found.confidence, found.clean_confidence)  # from files of earlier versions
    for values in (found.flags, found.clean, found.index, *(each or found.index for each in absent)):
        if len(values) != n or n == 0:
            raise ValueError(name)
    if not all(0 <= value <= 1 for value in found.flags + found.clean + found.confidence + found.clean_confidence):
        raise ValueError(name)
    return found


def read_result(path: Path, name: str, key: str) -> Plain | None:
    """A result file whose `mark` is this cache key; None for any other, or one that is missing or damaged."""
    try:
        plain = parse_json(path.read_text(encoding="utf-8"))
        return plain if plain["mark"] == key and plain["attacks"][name]["flags"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
