"""A run folder as the report shows it: everything that is there, and a sentence about what cannot be read. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rattle.errors import RattleError
from rattle.evaluation.results import StoredResult, load_results
from rattle.evaluation.samples import Sample
from rattle.recipes.reading import parse_yaml, read_text, tidy
from rattle.report.naming import method_of, settings_text, threat_text, unique_labels, varied
from rattle.runs.arrays import Gallery, InputPlane, InputSurface, WeightSurface
from rattle.runs.io import Plain, load_arrays, read_json, read_jsonl
from rattle.runs.paths import Run, is_published, slugify

T = TypeVar("T")
MANY = 4  # with more runs than this a page is about what differs: a baseline, and names without what all share


@dataclass(slots=True, eq=False)
class RunData:
    """One run, read."""

    folder: Path
    index: int = 0  # its place among the runs of a page, which decides its colour
    label: str = ""  # its name on the page, which no other run has
    variant: str = ""  # what runs that differ in their seed alone share of it
    external: bool = False  # results of a model that was not trained here, and nothing else
    recipe: Plain = field(default_factory=dict)
    recipe_text: str = ""
    environment: Plain = field(default_factory=dict)
    metrics: list[Plain] = field(default_factory=list)  # one entry an epoch
    timing: list[Plain] = field(default_factory=list)
    results: dict[str, StoredResult] = field(default_factory=dict)  # by attack
    columns: dict[str, Sample] = field(
        default_factory=dict
    )  # kept by `compare.columns_of`: they take long of many runs
    gallery: Gallery | None = None
    plane: InputPlane | None = None  # the directions of the input surface
    input_surface: InputSurface | None = None
    weight_line: WeightSurface | None = None
    weight_surface: WeightSurface | None = None
    flatness: Plain | None = None
    notes: list[str] = field(default_factory=list)  # what could not be read

    @property
    def largest(self) -> StoredResult | None:
        """The result on the most images; None before the first evaluation."""
        return max(self.results.values(), key=lambda result: len(result.clean), default=None)

    @property
    def stored_model(self) -> Mapping[str, str]:
        """What the result files say of the model: name, checkpoint, recipe."""
        return self.largest.model if self.largest else {}

    @property
    def name(self) -> str:
        if self.external:
            return external_name(self.stored_model, self.folder)
        return str(self.recipe.get("name", self.folder.name))

    @property
    def seed(self) -> int:
        seed = self.recipe.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def method(self) -> str:
        return self.name if self.external else method_of(self.recipe)

    @property
    def model(self) -> str:
        return self.stored_model.get("recipe", "") if self.external else str(self.recipe.get("model"))

    @property
    def data(self) -> str:
        data = {"name": self.largest.data} if self.external and self.largest else self.recipe.get("data")
        return str(data.get("name")) if isinstance(data, dict) else "None"

    @property
    def main_attack(self) -> Plain:
        """Settings of the attack trained with, or that a model not trained here was attacked with, as in a recipe."""
        return {"attack": self.largest.settings} if self.external and self.largest else self.recipe

    @property
    def threat(self) -> str:
        return threat_text(self.main_attack)

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.gallery.classes] if self.gallery else []


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
    for i, (run, (variant, label)) in enumerate(zip(runs, names_of(runs), strict=True)):
        run.index, run.variant, run.label = i, variant, label
    return runs


def names_of(runs: Sequence[RunData]) -> list[tuple[str, str]]:
    """(variant, label) of each run: its method and the settings in which runs of this method differ; and where that
    would repeat, seed and folder. A method that all of more than MANY runs share is left out where settings differ.
    """
    members: dict[str, list[Plain]] = {}
    for run in runs:
        members.setdefault(run.method, []).append(run.recipe)
    settings = [settings_text(run.recipe, varied(members[run.method])) for run in runs]
    alone = len(runs) > MANY and len(members) == 1 and all(settings)
    variants, names = [], []
    for run, text in zip(runs, settings, strict=True):
        variant = text if alone else ", ".join(filter(None, (run.method, text)))
        seed = str(run.folder) if run.external else f"seed {run.seed}"
        variants.append(variant)
        names.append((variant, seed, run.folder.name, str(run.folder)))
    return list(zip(variants, unique_labels(names), strict=True))


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


def check_folder(folder: Path) -> None:
    """Raise RattleError if this is no folder."""
    if folder.is_file():
        raise RattleError(f"{folder} is a file, not a folder of a run or of results")
    if not folder.is_dir():
        raise RattleError(f"there is no run folder {folder}")


def read_recipe(folder: Path) -> RunData:
    """A run with its recipe alone; raises RattleError if the folder holds none."""
    check_folder(folder)
    if not Run(folder).exists():
        raise RattleError(f"{folder} holds no run: it has no recipe.yaml")
    run = RunData(folder)
    try:
        run.recipe_text = read_text(Run(folder).recipe)
        plain = parse_yaml(run.recipe_text)
    except RattleError:
        plain = None
    if isinstance(plain, dict):
        run.recipe = tidy(plain)
    else:
        run.notes.append("recipe.yaml is not readable as a recipe")
    return run


def load_external(folder: Path) -> RunData:
    """A folder of results alone, such as `rattle evaluate --model ... --weights ...` or `evaluate(out=...)` writes."""
    check_folder(folder)
    for place in (folder, Run(folder).results):
        results, notes = load_results(place)
        if results:
            models = {external_name(result.model, folder): None for result in results.values()}
            several = [f"its results are of several models: {', '.join(models)}"] if len(models) > 1 else []
            return RunData(folder, external=True, results=results, notes=notes + several)
    what = "it has no recipe.yaml and no results that `rattle evaluate` wrote"
    raise RattleError(f"{folder} holds neither a run nor results: {what}")


def load_run(folder: Path) -> RunData:
    """Everything in a run folder that a page shows; of a folder of results, the results."""
    if not Run(folder).exists():
        return load_external(folder)
    run, files = read_recipe(folder), Run(folder)
    run.environment = tidy(read_json(files.environment, run.notes) or {})
    run.metrics = read_jsonl(files.metrics, run.notes)
    run.timing = read_jsonl(files.timing, run.notes)
    run.results, notes = load_results(files.results)
    run.notes += notes
    run.flatness = tidy(read_json(files.flatness, run.notes))
    run.gallery = load_stored(Gallery, files.gallery, run.notes)
    run.plane = load_stored(InputPlane, files.landscape("plane"), run.notes)
    run.input_surface = load_stored(InputSurface, files.landscape("input"), run.notes)
    run.weight_line = load_stored(WeightSurface, files.landscape("weight-1d"), run.notes)
    run.weight_surface = load_stored(WeightSurface, files.landscape("weight-2d"), run.notes)
    return run


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
