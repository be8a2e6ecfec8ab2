"""A run folder as a report sees it: everything that is there, and a sentence for everything that is not. No torch."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rattle.errors import RattleError
from rattle.report.naming import distinct, method_of

Plain = dict[str, Any]
Arrays = dict[str, np.ndarray]
LANDSCAPES = ("input", "weight-1d", "weight-2d")
NEEDED = {
    "Gallery": "classes y clean_predicted adversarial_predicted index x x_adv clean_confidence adversarial_label "
    "adversarial_confidence epsilons robust attack norm epsilon overrides",
    "InputPlane": "a b gradient rademacher",
    "InputSurface": "a b loss x y",
    "WeightSurface": "a b clean adversarial",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One attack's flags, image by image."""

    attack: str
    settings: Plain
    flags: tuple[int, ...]
    clean: tuple[int, ...]
    data: str

    @property
    def protocol(self) -> str:
        """What was attacked and under which threat; verdicts with another one are not comparable."""
        return json.dumps([self.data, len(self.flags), self.settings.get("threat"), self.attack], sort_keys=True)

    @property
    def epsilon(self) -> float | None:
        threat = self.settings.get("threat")
        value = threat.get("epsilon") if isinstance(threat, dict) else None
        return float(value) if isinstance(value, (int, float)) else None


@dataclass(slots=True)
class RunData:
    """One run, read."""

    folder: Path
    recipe: Plain = field(default_factory=dict)
    recipe_text: str = ""
    environment: Plain = field(default_factory=dict)
    metrics: list[Plain] = field(default_factory=list)
    timing: list[Plain] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    gallery: Arrays | None = None
    landscapes: dict[str, Arrays] = field(default_factory=dict)
    plane: Arrays | None = None
    flatness: Plain | None = None
    notes: list[str] = field(default_factory=list)  # what could not be read
    label: str = ""

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", self.folder.name))

    @property
    def seed(self) -> int:
        return int(self.recipe.get("seed", 0))

    @property
    def method(self) -> str:
        return method_of(self.recipe)

    def setting(self, *path: str) -> Any:
        """A nested setting of the recipe, None when it has none."""
        found: Any = self.recipe
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        return found


def load_runs(folders: Sequence[Path | str]) -> list[RunData]:
    """Read runs, and give each a label of its own."""
    if not folders:
        raise RattleError("name at least one run folder")
    runs = [see_one(Path(folder)) for folder in folders]
    for run, label in zip(runs, distinct(runs), strict=True):
        run.label = label
    return runs


def see_one(folder: Path) -> RunData:
    if not folder.is_dir():
        raise RattleError(f"there is no run folder {folder}")
    if not (folder / "recipe.yaml").is_file():
        raise RattleError(f"{folder} holds no run: it has no recipe.yaml")
    run = RunData(folder)
    read_recipe(run)
    run.environment = read_json(folder / "environment.json", run.notes) or {}
    run.metrics = read_jsonl(folder / "metrics.jsonl", run.notes)
    run.timing = read_jsonl(folder / "timing.jsonl", run.notes)
    read_verdicts(run)
    results = folder / "results"
    run.flatness = read_json(results / "flatness.json", run.notes)
    run.gallery = arrays(results / "gallery.npz", "Gallery", run.notes)
    run.plane = arrays(results / "landscape-plane.npz", "InputPlane", run.notes)
    for part in LANDSCAPES:
        kind = "InputSurface" if part == "input" else "WeightSurface"
        found = arrays(results / f"landscape-{part}.npz", kind, run.notes)
        if found is not None:
            run.landscapes[part] = found
    return run


def read_recipe(run: RunData) -> None:
    try:
        run.recipe_text = (run.folder / "recipe.yaml").read_text(encoding="utf-8", errors="replace")
        plain = yaml.safe_load(run.recipe_text)
    except (OSError, yaml.YAMLError):
        plain = None
    if isinstance(plain, dict):
        run.recipe = plain
    else:
        run.notes.append("recipe.yaml is not readable as a recipe")


def read_json(path: Path, notes: list[str]) -> Plain | None:
    """One JSON object; None, with a note unless it is simply absent."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        notes.append(f"{path.name} is damaged and was left out")
        return None
    if not isinstance(found, dict):
        notes.append(f"{path.name} does not hold an object and was left out")
        return None
    return found


def read_jsonl(path: Path, notes: list[str]) -> list[Plain]:
    """One JSON object a line; lines that are none are counted and left out, a repeated epoch keeps its last line."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found: dict[int, Plain] = {}
    broken = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            found[int(entry["epoch"])] = entry
        except (ValueError, KeyError, TypeError):
            broken.append(str(number))
    if broken:
        which = f"line {broken[0]} is" if len(broken) == 1 else f"lines {', '.join(broken[:5])} are"
        notes.append(f"{path.name}: {which} broken and left out")
    return [found[epoch] for epoch in sorted(found)]


def read_verdicts(run: RunData) -> None:
    """Every results/*.json that holds flags; other files there are somebody else's."""
    for path in sorted((run.folder / "results").glob("*.json")):
        if path.name == "flatness.json":
            continue
        plain = read_json(path, run.notes)
        if plain is None or not isinstance(plain.get("attacks"), dict):
            continue
        try:
            clean = tuple(int(flag) for flag in plain["clean_flags"])
            for attack, entry in plain["attacks"].items():
                flags = tuple(int(flag) for flag in entry["flags"])
                if not flags or len(flags) != len(clean):
                    raise ValueError(attack)
                settings = entry.get("settings") or {}
                run.verdicts[attack] = Verdict(
                    attack=attack, settings=settings, flags=flags, clean=clean, data=str(plain.get("data", ""))
                )
        except (KeyError, TypeError, ValueError, AttributeError):
            run.notes.append(f"results/{path.name} does not hold one flag per image and was left out")


def arrays(path: Path, kind: str, notes: list[str]) -> Arrays | None:
    """The arrays of an .npz file of a kind; nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError, TypeError):
        found = {}
    if str(found.get("kind")) != kind or not set(NEEDED[kind].split()) <= found.keys():
        notes.append(f"results/{path.name} is damaged or of another version and was left out")
        return None
    return found


def finite(value: Any) -> float | None:
    """A number that can be drawn, or None."""
    good = isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None
