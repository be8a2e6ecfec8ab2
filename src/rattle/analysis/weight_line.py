"""The straight line of weights between two models: a frontier without training (Frankle et al. 2020 on barriers)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.analysis.frontier import Curve, Frontier, Point
from rattle.attacks.registry import get_attack
from rattle.data.dataset import choose_images
from rattle.errors import RattleError, first_line
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.samples import Sample
from rattle.evaluation.target import target_from_checkpoint
from rattle.inputs import as_float
from rattle.recipes.schema import ball_text
from rattle.runs import checkpoint
from rattle.runs.io import write_atomically
from rattle.runs.load import load_model, open_checkpoint, refuse_other_weights
from rattle.runs.lock import check_folder
from rattle.runs.paths import Run
from rattle.runs.progress import SILENT, Console

BARRIER = 0.02  # less accuracy than the straight line between the ends by this much is reported
STATISTICS_BATCH = 250  # images of a pass that estimates BatchNorm statistics


class Line:
    """(1 - t) a + t b of two checkpoints, with the BatchNorm statistics of each model estimated on training images."""

    def __init__(self, first: Path | str, second: Path | str, *, trust_code: bool = False) -> None:
        self.ends = [open_checkpoint(path, trust_code=trust_code) for path in (first, second)]
        a, b = self.ends
        if a.images != b.images:
            raise RattleError(f"{first} and {second} were trained on different data: there is no line between them")
        self.target = target_from_checkpoint(a)
        self.model = self.target.model
        # those that `load` gives, the averaged ones where a run has them
        self.weights = [load_model(end).state_dict() for end in self.ends]
        try:
            refuse_other_weights(self.model, self.weights[1])
        except RattleError as reason:
            raise RattleError(f"no line leads from {first} to {second}: {first_line(reason)}") from reason
        data = a.recipe.data.load()
        self.train, self.val = data.train, data.val

    def at(self, t: float) -> nn.Module:
        """The model at t, in evaluation mode; its statistics are not interpolated but estimated."""
        mixed = {}
        for name, start in self.weights[0].items():
            end = self.weights[1][name]
            mixed[name] = torch.lerp(start, end, t) if start.is_floating_point() else start
        self.model.load_state_dict(mixed)
        torch.optim.swa_utils.update_bn(self.batches(), self.model)
        return self.model.eval()

    def batches(self) -> Iterator[Tensor]:
        for rows in torch.arange(len(self.train)).split(STATISTICS_BATCH):
            if len(rows) > 1:
                yield as_float(self.train[rows].x.to(self.target.device), channels_last=False)

    def save(self, t: float, folder: Path | str) -> Run:
        """Write the model at t as a run, which every command opens."""
        run, start = Run(Path(folder)), self.ends[0]
        check_folder(run, resume=False, overwrite=False)
        recipe = replace(start.recipe, name=f"{start.recipe.name}-between-{t:g}", average=None)
        model = self.at(t)
        write_atomically(run.recipe, recipe.to_yaml().encode())
        for name in ("best", "last"):
            checkpoint.write_checkpoint(
                run.checkpoint(name),
                recipe=recipe,
                classes=start.classes,
                shape=start.shape,
                progress=start.progress,
                model=model,
            )
        return run


def frontier_between(
    first: Path | str,
    second: Path | str,
    *,
    points: int = 7,
    attacks: Sequence[str] = ("pgd20", "autoattack"),
    n: int | None = 1000,
    out: Path | str | None = None,
    save: float | None = None,
    trust_code: bool = False,
    console: Console = SILENT,
) -> Frontier:
    """The accuracies on the straight line of weights from one run to another, by its place t from 0 to 1.

    It is of use for networks that share an initialisation; a barrier between others is reported in the notes. save:
    write the model at this t as the run out/between-T.
    """
    if points < 3:
        raise RattleError(f"points must be 3 or more, the ends among them, got {points}")
    if save is not None and not 0 <= save <= 1:
        raise RattleError(f"save takes a place on the line from 0 to 1, got {save:g}")
    line = Line(first, second, trust_code=trust_code)
    threat = line.target.threat
    index = choose_images(line.target.test.y, n)
    images = line.target.images(index)
    chosen = {name: get_attack(name, threat) for name in attacks}
    found = []
    how: Any = {"quiet": True, "check_model": False}
    validation = {"validation": line.ends[0].recipe.validation_attack}
    with console.progress("line", points) as advance:
        for t in np.linspace(0, 1, points).tolist():
            model = line.at(t)
            result = evaluate(model, images.x, images.y, chosen, **how)
            held_out = None
            if line.val is not None:
                val = line.val.to(line.target.device)
                chosen_by = evaluate(model, val.x, val.y, validation, **how)
                held_out = np.array([[chosen_by.clean_accuracy, chosen_by.robust_accuracy]])
            clean = dict.fromkeys(attacks, Sample(seeds=(0,), flags=(tuple(result.clean),), errors=(result.error,)))
            robust = {}
            for name in attacks:
                attack = result.attacks[name]
                robust[name] = Sample(seeds=(0,), flags=(tuple(attack.flags),), errors=(attack.error,))
            found.append(Point(value=t, clean=clean, robust=robust, held_out=held_out))
            advance(1)
    curve = Curve(method=f"{Path(first).name} to {Path(second).name}", setting="t", points=tuple(found))
    notes = barriers(curve, attacks)
    result = Frontier(curves=(curve,), threat=ball_text(threat), notes=notes)
    if out is not None:
        if save is not None:
            line.save(save, Path(out) / f"between-{save:g}")
        result.save(out)
    return result


def barriers(curve: Curve, attacks: Sequence[str]) -> tuple[str, ...]:
    """A sentence for each accuracy that falls below the straight line between the ends."""
    columns = {name: [point.accuracy(name)[1] for point in curve.points] for name in attacks}
    columns["clean"] = [point.accuracy(attacks[0])[0] for point in curve.points]
    places = np.array([point.value for point in curve.points])
    notes = []
    for name, values in columns.items():
        below = np.array(values) - np.interp(places, places[[0, -1]], [values[0], values[-1]])
        deepest = int(below.argmin())
        if below[deepest] < -BARRIER:
            depth, where = -100 * below[deepest], places[deepest]
            notes.append(
                f"a barrier: {name} accuracy at t {where:.2g} is {depth:.1f} points below the line of the ends"
            )
    return tuple(notes)
