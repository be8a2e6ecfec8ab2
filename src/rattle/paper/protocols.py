"""Attacks on the checkpoints of a run, under two protocols, with the results in the run's folder.

honest: the checkpoint that was best on held-out validation images, for every attack. paper: the checkpoints of
Appendix B; an attack's accuracy is the highest over them on the test set, and the clean one that of the checkpoint best
under PGD-20. AutoAttack and RayS are run on that checkpoint alone, to limit the cost.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rattle.attacks.transfer import Transfer
from rattle.data import Images
from rattle.data.dataset import choose_images
from rattle.data.registry import Data
from rattle.evaluation.cache import cache_key
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import read_result
from rattle.evaluation.samples import Difference, Sample
from rattle.paper.rows import Cell, Row, read_cell
from rattle.paper.scales import COSTLY, Scale
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import kept_epochs
from rattle.runs import distributed
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.io import Plain, write_json
from rattle.runs.load import load_model
from rattle.runs.paths import Run, epoch_name
from rattle.runs.progress import Console
from rattle.training.sweep import Job

Protocol = Literal["honest", "paper"]
EVALUATION_SETTINGS: Plain = {"seed": 0, "batch_size": 250}  # of every evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """Ours in one cell under one protocol, as a share (or distance), not in %."""

    sample: Sample  # a flag for each image; for ADBD a distance
    checkpoints: list[str]  # that the seeds' values belong to
    difference: Difference | None = None  # to the baseline
    p_adjusted: float | None = None  # Holm, over all tests of the protocol in the table


Ours = CellResult | str  # or why there is no number: diverged, failed, not finished


def protocol_checkpoints(recipe: Recipe, protocol: Protocol) -> list[str]:
    if protocol == "honest":
        return ["best"]
    return [epoch_name(epoch) for epoch in kept_epochs(recipe.keep_checkpoints, recipe.epochs)]


@dataclass(slots=True)
class Evaluator:
    """Attacks runs; results on disk of the same weights, images and settings are read instead."""

    scale: Scale
    console: Console
    test_images: dict[Data, Images] = field(default_factory=dict)  # each dataset is read once

    def row(self, row: Row, job: Job, protocol: Protocol, surrogate: Run | None) -> dict[str, CellResult]:
        """Every column of a row, measured on the run of a job, one seed; transfer attacks are made on the surrogate."""
        names = protocol_checkpoints(job.recipe, protocol)
        # by PGD-20 the paper chooses a checkpoint, also where the table does not print it
        selection = next((cell for cell in row.cells if cell.attack == "pgd20"), read_cell("pgd20", "-", row.norm))
        best = names[0]
        if len(names) > 1:
            best = max(names, key=lambda name: self.cell(selection, job, name, surrogate).sample.accuracies)
        found = {}
        for cell in row.cells:
            attacked = [best] if cell.attack == "clean" or cell.attack in COSTLY else names
            if cell.attack == "clean":  # its flags come with the results of PGD-20, which is run anyway
                cell = replace(selection, column="clean")
            each = [self.cell(cell, job, name, surrogate) for name in attacked]
            found[cell.column] = max(each, key=lambda one: one.sample.accuracies)
        return found

    def cell(self, cell: Cell, job: Job, checkpoint: str, surrogate: Run | None) -> CellResult:
        """One column of one checkpoint."""
        name = self.scale.name_of(cell.attack)
        attack = self.scale.attack(cell, job.recipe)
        if cell.surrogate and surrogate:
            other = load_model(read_checkpoint(surrogate.checkpoint("best")))
            attack = Transfer(attack=attack, surrogate=other, name=surrogate.folder.name)
            name = f"transfer-{name}"
        plain = self.result(name, attack, self.scale.images(cell.attack), job, checkpoint)
        entry = plain["attacks"][name]
        values = {"clean": plain["clean_flags"], "adbd": entry.get("distances")}.get(cell.column) or entry["flags"]
        protocol = [cell.column, entry["settings"], plain["data"], len(values)]
        how = json.dumps(protocol, sort_keys=True)  # what was run on how many images; only equal ones are compared
        sample = Sample(seeds=(job.recipe.seed,), flags=(tuple(values),), protocol=how)
        return CellResult(sample=sample, checkpoints=[checkpoint])

    def result(self, name: str, attack: Any, n: int | None, job: Job, checkpoint: str) -> Plain:
        """What results/NAME.json holds; evaluated now if there is none of these weights, images and settings.

        Results of the best checkpoint are where `rattle evaluate` and `rattle report` expect them.
        """
        run, recipe = job.run, job.recipe
        folder = run.results if checkpoint == "best" else run.results / checkpoint
        model, images = load_model(read_checkpoint(run.checkpoint(checkpoint))), self.images(recipe, n)
        key = cache_key(model, images.x, images.y, attack, **EVALUATION_SETTINGS)
        path = folder / f"{name}.json"
        for other in (path, *sorted(run.results.rglob(path.name))):  # the best checkpoint often equals an epoch's
            if known := read_result(other, name, key):
                if other != path:
                    write_json(path, known)
                return known
        self.console.log(f"{run.folder.name}, {checkpoint}: {name} on {len(images)} images")
        device = distributed.choose_device(recipe.device)
        model, images = model.to(device), images.to(device)
        metadata = {"checkpoint": str(run.checkpoint(checkpoint)), "recipe": recipe.name, "data": recipe.data.name}
        metadata |= {"seed": EVALUATION_SETTINGS["seed"], "mark": key, "sample": {"order": "first"}}
        result = evaluate(
            model,
            images.x,
            images.y,
            {name: attack},
            **EVALUATION_SETTINGS,
            out=folder,
            metadata=metadata,
            console=self.console,
        )
        return result.to_plain()

    def images(self, recipe: Recipe, n: int | None) -> Images:
        """The first n test images, all when n is None: what the authors' release attacks, where `rattle evaluate` draws
        a fair sample. The table's notes and the result files say so."""
        if recipe.data not in self.test_images:
            self.test_images[recipe.data] = recipe.data.source().test
        test = self.test_images[recipe.data]
        return test[choose_images(test.y, n, first=True)]
