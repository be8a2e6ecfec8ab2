"""Attacks on the checkpoints of a run, under two protocols, with the results in the run's folder.

honest: the checkpoint that was best on held-out validation images, for every attack. paper: the checkpoints of
Appendix B; an attack's accuracy is the highest over them on the test set, and the clean one that of the checkpoint best
under PGD-20. AutoAttack and RayS are run on that checkpoint alone, to limit the cost.
"""

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from torch import nn

from rattle.attacks.transfer import Transfer
from rattle.data import Images
from rattle.data.dataset import choose_images
from rattle.data.registry import Data
from rattle.evaluation.cache import cache_key
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import read_result
from rattle.paper.rows import Cell, Row, read_cell
from rattle.paper.scales import COSTLY, Scale
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import kept_epochs
from rattle.runs import distributed
from rattle.runs.checkpoint import read
from rattle.runs.io import write_atomically
from rattle.runs.load import load_model
from rattle.runs.paths import Run, epoch_name
from rattle.runs.progress import Console
from rattle.training.sweep import Job

Protocol = Literal["honest", "paper"]
PROTOCOLS: tuple[Protocol, ...] = ("honest", "paper")
SETTINGS: dict[str, Any] = {"seed": 0, "batch_size": 250}  # of every evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One column of one run: a value for each image, and the checkpoint they belong to."""

    values: tuple[float, ...]  # a flag for each image; for ADBD a distance
    checkpoint: str
    protocol: str  # what was run on how many images; only equal ones are compared

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


def stored_name(cell: Cell, scale: Scale) -> str:
    """The name of the result file behind a cell."""
    name = scale.name_of(cell.attack)
    return f"transfer-{name}" if cell.surrogate else name


def selection_cell(row: Row) -> Cell:
    """PGD-20, by which the paper chooses a checkpoint, also where the table does not print it."""
    return next((cell for cell in row.cells if cell.attack == "pgd20"), read_cell("pgd20", "-", row.norm))


def attacked_checkpoints(cell: Cell, names: list[str], best: str) -> list[str]:
    """The checkpoints that a column is measured on."""
    return [best] if cell.column == "clean" or cell.attack in COSTLY else names


def checkpoints(recipe: Recipe, protocol: Protocol) -> list[str]:
    if protocol == "honest":
        return ["best"]
    return [epoch_name(epoch) for epoch in kept_epochs(recipe.keep_checkpoints, recipe.epochs)]


def result_file(run: Run, checkpoint: str, name: str) -> Path:
    """Results of the best checkpoint are where `rattle evaluate` and `rattle report` expect them."""
    folder = run.results if checkpoint == "best" else run.results / checkpoint
    return folder / f"{name}.json"


@dataclass(slots=True)
class Evaluator:
    """Attacks runs; results on disk of the same weights, images and settings are read instead."""

    scale: Scale
    console: Console
    test_images: dict[Data, Images] = field(default_factory=dict)  # each dataset is read once

    def row(self, row: Row, job: Job, protocol: Protocol, surrogate: Run | None) -> dict[str, Measured]:
        """Every column of a row, measured on the run of a job; transfer attacks are made on the surrogate."""

        def measured(cell: Cell, checkpoint: str) -> Measured:
            return self.cell(cell, job, checkpoint, surrogate if cell.surrogate else None)

        names = checkpoints(job.recipe, protocol)
        selection = selection_cell(row)
        best = max(names, key=lambda name: measured(selection, name).mean) if len(names) > 1 else names[0]
        found = {}
        for cell in row.cells:
            if cell.attack == "clean":  # its flags come with the results of PGD-20, which is run anyway
                cell = replace(selection, column="clean")
            each = [measured(cell, name) for name in attacked_checkpoints(cell, names, best)]
            found[cell.column] = max(each, key=lambda one: one.mean)
        return found

    def cell(self, cell: Cell, job: Job, checkpoint: str, surrogate: Run | None) -> Measured:
        """One column of one checkpoint."""
        plain = self.result(cell, job, checkpoint, surrogate)
        entry = plain["attacks"][stored_name(cell, self.scale)]
        values = {"clean": plain["clean_flags"], "adbd": entry.get("distances")}.get(cell.column) or entry["flags"]
        protocol = [cell.column, entry["settings"], plain["data"], len(values)]
        return Measured(values=tuple(values), checkpoint=checkpoint, protocol=json.dumps(protocol, sort_keys=True))

    def result(self, cell: Cell, job: Job, checkpoint: str, surrogate: Run | None) -> dict[str, Any]:
        """What results/NAME.json holds; evaluated now if it is missing or its key is another."""
        name, run, recipe = stored_name(cell, self.scale), job.run, job.recipe
        path = result_file(run, checkpoint, name)
        model, images = model_at(run.checkpoint(checkpoint)), self.images(recipe, self.scale.images(cell.attack))
        attack = self.scale.attack(cell, recipe)
        if surrogate is not None:
            other = model_at(surrogate.checkpoint("best"))
            attack = Transfer(attack=attack, surrogate=other, name=surrogate.folder.name)
        key = cache_key(model, images.x, images.y, attack, **SETTINGS)
        if known := known_result(run, path, key):
            return known
        self.console.log(f"{run.folder.name}, {checkpoint}: {name} on {len(images)} images")
        device = distributed.choose_device(recipe.device)
        model, images = model.to(device), images.to(device)
        metadata = {"checkpoint": str(run.checkpoint(checkpoint)), "recipe": recipe.name, "data": recipe.data.name}
        metadata |= {"seed": SETTINGS["seed"], "mark": key, "sample": {"order": "first"}}
        where: dict[str, Any] = {"out": path.parent, "metadata": metadata, "console": self.console}
        return evaluate(model, images.x, images.y, {name: attack}, **SETTINGS, **where).to_plain()

    def images(self, recipe: Recipe, n: int | None) -> Images:
        """The first n test images, all when n is None: what the authors' release attacks, where `rattle evaluate` draws
        a fair sample. The table's notes and the result files say so."""
        if recipe.data not in self.test_images:
            self.test_images[recipe.data] = recipe.data.source().test
        test = self.test_images[recipe.data]
        return test[choose_images(test.y, n, first=True)]


@lru_cache(maxsize=3)
def cached_model(path: Path, modified: int) -> nn.Module:
    """The model of a checkpoint, read once for several attacks; a replaced file has another time of modification."""
    return load_model(read(path))


def model_at(path: Path) -> nn.Module:
    return cached_model(path, path.stat().st_mtime_ns if path.exists() else 0)


def known_result(run: Run, path: Path, key: str) -> dict[str, Any] | None:
    """The result of these weights, images and settings, also if stored for another checkpoint; None if there is none.

    The best checkpoint often equals that of an epoch.
    """
    for other in (path, run.results / path.name, *sorted(run.results.glob(f"epoch-*/{path.name}"))):
        if plain := read_result(other, path.stem, key):
            if other != path:
                write_atomically(path, json.dumps(plain).encode())
            return plain
    return None
