"""Attacks on the checkpoints of a run, under two protocols, verdict by verdict in the run's results.

honest: the checkpoint that was best on held-out validation images, for every attack. paper: the checkpoints of
Appendix B; an attack's accuracy is the highest over them on the test set, and the clean one that of the checkpoint best
under PGD-20. AutoAttack and RayS look at that checkpoint alone, to keep the cost sane.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from rattle.attacks import Attack
from rattle.attacks.transfer import Transfer
from rattle.data import Images
from rattle.data.registry import Data
from rattle.evaluation.evaluate import evaluate, mark
from rattle.evaluation.results import save_results
from rattle.paper.rows import Cell, Row, read_cell
from rattle.paper.scales import COSTLY, Scale
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.runs.checkpoint import read
from rattle.runs.io import write_atomically
from rattle.runs.load import load_model
from rattle.runs.paths import Run, epoch_name
from rattle.runs.progress import Console

Protocol = Literal["honest", "paper"]
PROTOCOLS: tuple[Protocol, ...] = ("honest", "paper")
SEED = 0  # of the attacks' random draws
EVERY_IMAGE = torch.tensor([])  # none is left out; which ones are right at the start follows from the weights


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
    """What the verdicts behind a cell are kept under."""
    name = scale.name_of(cell.attack)
    return f"transfer-{name}" if cell.surrogate else name


def selection_cell(row: Row) -> Cell:
    """PGD-20, by which the paper chooses a checkpoint, also where the table does not print it."""
    known = next((cell for cell in row.cells if cell.attack == "pgd20"), None)
    return known or read_cell("pgd20", "-", row.norm)


def source_of(cell: Cell, row: Row) -> Cell:
    """What a column is read off: clean flags come with the verdicts of PGD-20, which is run anyway."""
    return replace(selection_cell(row), column="clean", printed=cell.printed) if cell.attack == "clean" else cell


def attacked_checkpoints(cell: Cell, names: list[str], best: str) -> list[str]:
    """The checkpoints that a column is measured on."""
    return [best] if cell.column == "clean" or cell.attack in COSTLY else names


def checkpoints(recipe: Recipe, protocol: Protocol) -> list[str]:
    if protocol == "honest":
        return ["best"]
    return [epoch_name(epoch) for epoch in recipe.keep.epochs(recipe.epochs)] if recipe.keep else []


def result_file(run: Run, checkpoint: str, name: str) -> Path:
    """Verdicts on the best checkpoint stand where `rattle evaluate` and `rattle report` look for them."""
    folder = run.results if checkpoint == "best" else run.results / checkpoint
    return folder / f"{name}.json"


@dataclass(slots=True)
class Evaluator:
    """Attacks runs; what was judged before, with the same weights, images and settings, is read."""

    scale: Scale
    console: Console
    tests: dict[Data, Images] = field(default_factory=dict)
    batch_size: int = 250

    def row(self, row: Row, run: Run, recipe: Recipe, protocol: Protocol, surrogate: Run | None) -> dict[str, Measured]:
        """Every column of a row."""

        def measured(cell: Cell, checkpoint: str) -> Measured:
            return self.cell(cell, run, recipe, checkpoint, surrogate if cell.surrogate else None)

        names, cells = checkpoints(recipe, protocol), [source_of(cell, row) for cell in row.cells]
        best = names[0]
        if len(names) > 1:
            best = max(names, key=lambda name: measured(selection_cell(row), name).mean)
        return {
            cell.column: max(
                (measured(cell, name) for name in attacked_checkpoints(cell, names, best)), key=lambda m: m.mean
            )
            for cell in cells
        }

    def cell(self, cell: Cell, run: Run, recipe: Recipe, checkpoint: str, surrogate: Run | None) -> Measured:
        """One column of one checkpoint."""
        plain = self.verdicts(cell, run, recipe, checkpoint, surrogate)
        entry = plain["attacks"][stored_name(cell, self.scale)]
        values = {"clean": plain["clean_flags"], "adbd": entry.get("distances")}.get(cell.column) or entry["flags"]
        about = [cell.column, entry["settings"], plain["data"], len(values)]
        return Measured(values=tuple(values), checkpoint=checkpoint, protocol=json.dumps(about, sort_keys=True))

    def verdicts(self, cell: Cell, run: Run, recipe: Recipe, checkpoint: str, surrogate: Run | None) -> dict[str, Any]:
        """What results/NAME.json holds, judged now if it is not there or was judged otherwise."""
        name, path = stored_name(cell, self.scale), result_file(run, checkpoint, stored_name(cell, self.scale))
        model = model_at(run.checkpoint(checkpoint))
        attack = self.scale.attack(cell, recipe)
        images = self.images(recipe, self.scale.images(cell.attack))
        if surrogate is not None:
            other = model_at(surrogate.checkpoint("best"))
            attack = Transfer(attack=attack, surrogate=other, name=str(surrogate.folder.name))
        key = mark(model, images.x, images.y, attack, SEED, self.batch_size, EVERY_IMAGE)
        kept = read_result(path, name, key) or same_elsewhere(run, path, key)
        return kept or self.judge(model, images, {name: attack}, key, run, checkpoint, recipe)

    def judge(
        self,
        model: nn.Module,
        images: Images,
        attacks: Mapping[str, Attack],
        key: str,
        run: Run,
        checkpoint: str,
        recipe: Recipe,
    ) -> dict[str, Any]:
        folder = result_file(run, checkpoint, "").parent
        self.console.log(f"{run.folder.name}, {checkpoint}: {', '.join(attacks)} on {len(images)} images")
        device = distributed.choose_device(recipe.device)
        model, images = model.to(device), images.to(device)
        settings = {"batch_size": self.batch_size, "seed": SEED, "store": folder, "console": self.console}
        result = evaluate(model, images.x, images.y, attacks, **settings)
        told = {"checkpoint": str(run.checkpoint(checkpoint)), "recipe": recipe.name, "data": recipe.data.name}
        save_results(result, {**told, "seed": SEED, "mark": key}, folder)
        return {**told, **result.to_plain()}

    def images(self, recipe: Recipe, n: int | None) -> Images:
        """The first n test images, each dataset read once."""
        if recipe.data not in self.tests:
            self.tests[recipe.data] = recipe.data.source().test
        test = self.tests[recipe.data]
        return test if n is None else test[torch.arange(min(n, len(test)))]


@lru_cache(maxsize=3)
def opened(path: Path, stamp: int) -> nn.Module:
    """The model of a checkpoint; the next attack on it finds it open. The stamp tells a file that was replaced."""
    return load_model(read(path))


def model_at(path: Path) -> nn.Module:
    return opened(path, path.stat().st_mtime_ns if path.exists() else 0)


def same_elsewhere(run: Run, path: Path, key: str) -> dict[str, Any] | None:
    """The best checkpoint is often one of those kept: what was judged of the one holds for the other."""
    for other in (run.results / path.name, *sorted(run.results.glob(f"epoch-*/{path.name}"))):
        found = read_result(other, path.stem, key) if other != path else None
        if found is not None:
            write_atomically(path, json.dumps(found).encode())
            return found
    return None


def read_result(path: Path, name: str, key: str) -> dict[str, Any] | None:
    """Verdicts on disk, when they are of these weights, images and settings; anything else is judged again."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return plain if plain["mark"] == key and plain["attacks"][name]["flags"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
