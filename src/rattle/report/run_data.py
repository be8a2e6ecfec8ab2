"""A run folder as the report shows it: everything that is there, and a sentence about what cannot be read. No torch."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rattle.errors import RattleError
from rattle.evaluation.results import Results, StoredResult, load_results
from rattle.evaluation.samples import Sample, on_shared_images, sample_of
from rattle.evaluation.unions import split_name
from rattle.recipes.reading import parse_yaml, read_text, tidy
from rattle.recipes.schema import flatten
from rattle.report.naming import method_of, recipe_threat, settings_text, threat_text, unique_labels, varied
from rattle.report.tables import sorted_attacks
from rattle.runs.arrays import Gallery, InputPlane, InputSurface, WeightSurface
from rattle.runs.io import Plain, load_arrays, read_json, read_jsonl
from rattle.runs.paths import Run, is_published, slugify

T = TypeVar("T")
MANY = 4  # with more runs than this a page is about what differs: a baseline, and names without what all share
BEST_KNOWN = "best-known"  # the column of what withstood every attack, beside AutoAttack's


@dataclass(eq=False)
class RunData:
    """One run, read."""

    folder: Path
    name: str = ""  # of its recipe, or of a model that was not trained here
    method: str = ""
    model: str = ""  # its network
    data: str = ""
    trained_for: Plain = field(default_factory=dict)  # {"attack": settings}; of a model not trained here those measured
    seed: int = 0
    external: bool = False  # results of a model that was not trained here, and nothing else
    index: int = 0  # its place among the runs of a page, which decides its colour
    label: str = ""  # its name on the page, which no other run has
    variant: str = ""  # what runs that differ in their seed alone share of it
    settings: Plain = field(default_factory=dict)  # by dotted name, those in which runs of its method differ
    recipe: Plain = field(default_factory=dict)
    recipe_text: str = ""
    environment: Plain = field(default_factory=dict)
    metrics: list[Plain] = field(default_factory=list)  # one entry an epoch
    timing: list[Plain] = field(default_factory=list)
    results: dict[str, StoredResult] = field(default_factory=dict)  # by attack
    gallery: Gallery | None = None
    plane: InputPlane | None = None  # the directions of the input surface
    input_surface: InputSurface | None = None
    weight_line: WeightSurface | None = None
    weight_surface: WeightSurface | None = None
    flatness: Plain | None = None
    corruptions: Plain | None = None
    notes: list[str] = field(default_factory=list)  # what could not be read

    @property
    def threat(self) -> str:
        return threat_text(self.trained_for) if self.trained_for or not self.external else "several threats"

    @property
    def epsilon(self) -> float | None:
        found = recipe_threat(self.trained_for)
        return found[1] if found else None

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.gallery.classes] if self.gallery else []

    @cached_property
    def columns(self) -> dict[str, Sample]:
        """What was measured: clean on the most images, the attacks, and the best known beside AutoAttack."""
        if not self.results:
            return {}
        results = {"clean": most_images(self.results).unattacked} | self.results
        found = {name: sample_of(results[name], self.seed) for name in sorted_attacks(results)}
        random = any(sample.errors for sample in found.values())  # the lowest of noisy rates is no bound
        best = self.best_known(found) if "autoattack" in found and not random else None
        return found | {BEST_KNOWN: best} if best else found

    def best_known(self, columns: Mapping[str, Sample]) -> Sample | None:
        """AutoAttack's images that no attack of the same threat broke; None where no other broke more than it."""
        bound, threat = columns["autoattack"], self.results["autoattack"].settings.get("threat")
        numbered = replace(bound, flags=(tuple(range(bound.n)),))  # to see which of its images are shared
        flags, others = list(bound.flags[0]), []
        for name, result in self.results.items():
            shared = on_shared_images(numbered, columns[name])
            if name == "autoattack" or result.settings.get("threat") != threat or shared is None:
                continue
            others.append(name)
            for i, flag in zip(shared[0].flags[0], shared[1].flags[0], strict=True):
                flags[int(i)] = min(flags[int(i)], flag)
        if sum(flags) == sum(bound.flags[0]):
            return None
        protocol = json.dumps({"attack": BEST_KNOWN, "of": sorted(others), "threat": threat})
        return replace(bound, flags=(tuple(flags),), protocol=protocol, confidence=())


Runs = Sequence[RunData]


def most_images(results: Results) -> StoredResult:
    return max(results.values(), key=lambda result: len(result.clean))


def external_name(model: Mapping[str, str], folder: Path) -> str:
    """What a model that was not trained here is called: by its own name, its weights' file, its network or the folder.

    >>> external_name({"checkpoint": "zoo/plain.pt", "recipe": "net.py:build"}, Path("plain.pt-results"))
    'plain.pt'
    """
    weights = Path(model.get("checkpoint", ""))
    if weights.parent.name == Run.checkpoints.name:  # every run has a best.safetensors
        weights = weights.parents[1]
    if weights.name == "model.safetensors":  # and every published model this one
        weights = weights.parent
    return model.get("name") or weights.name or model.get("recipe") or folder.resolve().name


def load_runs(folders: Sequence[Path | str]) -> list[RunData]:
    """Read runs, or folders of results alone, and give each a label of its own."""
    if not folders:
        raise RattleError("name at least one run folder")
    runs = [load_run(results_folder(folder)) for folder in folders]
    name_runs(runs)
    return runs


def name_runs(runs: Runs) -> None:
    """Name each run by its method and the settings in which runs of this method differ; and where that would repeat, by
    seed and folder. A method that all of more than MANY runs share is left out where settings differ.
    """
    members: dict[str, list[RunData]] = {}
    for run in runs:
        members.setdefault(run.method, []).append(run)
    for same in members.values():
        names = varied([run.recipe for run in same])
        for run in same:
            recipe = flatten(run.recipe)
            run.settings = {name: recipe.get(name) for name in names}
    texts = [settings_text(run.settings) for run in runs]
    alone = len(runs) > MANY and len(members) == 1 and all(texts)
    names = []
    for i, (run, text) in enumerate(zip(runs, texts, strict=True)):
        run.index = i
        run.variant = text if alone else ", ".join(filter(None, (run.method, text)))
        seed = str(run.folder) if run.external else f"seed {run.seed}"
        names.append((run.variant, seed, run.folder.name, str(run.folder), f"({i + 1})"))
    for run, label in zip(runs, unique_labels(names), strict=True):
        run.label = label


def baseline_first(folders: Sequence[Path | str], baseline: Path | str | None) -> list[Path | str]:
    """The baseline, whether it is among the folders or not, then the others."""
    if not baseline:
        return list(folders)
    return [baseline, *[each for each in folders if Path(each).resolve() != Path(baseline).resolve()]]


def results_folder(name: Path | str) -> Path:
    """The folder itself; of `zoo:NAME` and `hf:OWNER/NAME` the one in the working folder that evaluation wrote to."""
    published = is_published(name)
    folder = Path(slugify(str(name)) if published else name)
    if published and not folder.is_dir():
        raise RattleError(f"{name} has no results here: `rattle evaluate {name}` writes them to {folder}")
    return folder


def load_external(folder: Path) -> RunData:
    """A folder of results alone, such as `rattle evaluate --model ... --weights ...` or `evaluate(out=...)` writes."""
    results, notes = load_results(folder)
    if not results:
        results, notes = load_results(Run(folder).results)
    if not results:
        what = "it has no recipe.yaml and no results that `rattle evaluate` wrote"
        raise RattleError(f"{folder} holds neither a run nor results: {what}")
    names = sorted({external_name(result.model, folder) for result in results.values()})
    if len(names) > 1:
        notes.append(f"its results are of several models: {', '.join(names)}")
    largest = most_images(results)
    run = RunData(folder, external_name(largest.model, folder), external=True, results=results, notes=notes)
    run.method, run.model, run.data = run.name, largest.model.get("recipe", ""), largest.data
    several = any(split_name(name)[1] for name in results)
    run.trained_for = {} if several else {"attack": largest.settings}
    return run


def load_run(folder: Path) -> RunData:
    """Everything in a run folder that a page shows; of a folder of results, the results."""
    if folder.is_file():
        raise RattleError(f"{folder} is a file, not a folder of a run or of results")
    if not folder.is_dir():
        raise RattleError(f"there is no run folder {folder}")
    files = Run(folder)
    if not files.exists():
        return load_external(folder)
    run = RunData(folder)
    read_recipe(run, files.recipe)
    run.environment = tidy(read_json(files.environment, run.notes) or {})
    run.metrics = read_jsonl(files.metrics, run.notes)
    run.timing = read_jsonl(files.timing, run.notes)
    run.results, notes = load_results(files.results)
    run.notes += notes
    run.flatness = tidy(read_json(files.flatness, run.notes))
    run.corruptions = tidy(read_json(files.corruptions, run.notes))
    run.gallery = load_stored(Gallery, files.gallery, run.notes)
    run.plane = load_stored(InputPlane, files.landscape("plane"), run.notes)
    run.input_surface = load_stored(InputSurface, files.landscape("input"), run.notes)
    run.weight_line = load_stored(WeightSurface, files.landscape("weight-1d"), run.notes)
    run.weight_surface = load_stored(WeightSurface, files.landscape("weight-2d"), run.notes)
    return run


def read_recipe(run: RunData, path: Path) -> None:
    """Fill in what recipe.yaml says; a value of another type than a recipe's is left out."""
    try:
        run.recipe_text = read_text(path)
        plain = parse_yaml(run.recipe_text)
    except RattleError:
        plain = None
    if isinstance(plain, dict):
        run.recipe = tidy(plain)
    else:
        run.notes.append("recipe.yaml is not readable as a recipe")
    recipe = run.recipe
    data, seed = recipe.get("data"), recipe.get("seed")
    run.name, run.method = str(recipe.get("name", run.folder.name)), method_of(recipe)
    run.model, run.trained_for = str(recipe.get("model")), recipe
    run.data = str(data.get("name")) if isinstance(data, dict) else "None"
    run.seed = seed if isinstance(seed, int) else 0


def load_stored(kind: type[T], path: Path, notes: list[str]) -> T | None:
    """What the analysis stored; None if the file is absent or, with a note, damaged."""
    try:
        return load_arrays(kind, path) if path.exists() else None
    except RattleError:
        notes.append(f"results/{path.name} is damaged or of another version and was left out")
        return None


def finite(value: Any) -> float | None:
    """A number that can be drawn, or None."""
    good = isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None
