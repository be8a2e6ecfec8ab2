"""What a plan will cost on this machine, from a few training steps of each kind of run; good to a factor of two.

A training step's seconds are divided by its passes through the network; attacks are counted in the same passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rattle.data import Dataset, on_device
from rattle.paper.plan import Entry, Plan, States
from rattle.paper.protocols import Protocol, checkpoints, looked_at, result_file, ruling, source_of, stored_name
from rattle.paper.rows import Row
from rattle.paper.scales import Scale
from rattle.recipes.recipe import Recipe
from rattle.runs.progress import Console
from rattle.training.loop import looks, step_on
from rattle.training.state import init_state
from rattle.training.sweep import Job

BACKWARD = 2  # a backward pass costs about two forward ones
PATIENCE = 4.0  # seconds after which a step is not repeated, nor tried on a larger batch
# Of AutoAttack: steps of apgd-ce and of each target, targets of apgd-t and of fab-t, queries of square.
PARTS = {"autoattack": (100, 9, 5000), "smoke-ensemble": (10, 3, 100)}


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one image in a training step, and in one forward pass; and bytes of a checkpoint."""

    step: float
    forward: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that are left, and the disk that kept checkpoints take."""

    training: dict[str, float]  # folder name -> seconds
    evaluation: float
    bytes: int

    @property
    def seconds(self) -> float:
        return sum(self.training.values()) + self.evaluation


def passes(recipe: Recipe) -> int:
    """Forward passes that a training step costs as much as."""
    awp = recipe.awp is not None
    return recipe.attack.steps * (1 + BACKWARD) + 1 + 2 * (1 + BACKWARD) * (1 + awp)


def kind_of(recipe: Recipe) -> Recipe:
    """Runs that cost the same: seed, eta and name do not matter."""
    return replace(recipe, name="", seed=0, objective=replace(recipe.objective, eta=0.1), average=None)


def pace(recipe: Recipe, data: Dataset) -> Pace:
    """A few steps, on ever larger batches up to the whole one, or until a step takes long."""
    learner = init_state(recipe, data)
    learner.progress.epoch = recipe.awp.warmup if recipe.awp else 0
    learner.train_mode(recipe)
    (views, outer), images = looks(learner.model, recipe), on_device(data.train, learner.device)
    most = min(recipe.batch_size, len(images))

    def seconds_of(size: int) -> float:
        return fastest(lambda: step_on(torch.arange(size), learner, views, outer, recipe, images))

    whole = seconds_of_batch(most, seconds_of)
    weights = sum(p.numel() * p.element_size() for p in learner.model.parameters())
    return Pace(whole / most, whole / most / passes(recipe), weights)


def seconds_of_batch(most: int, seconds_of: Callable[[int], float]) -> float:
    """A step of the whole batch, from steps of a few images and what each further image adds.

    What a step costs with any batch is counted once: on a busy machine it can be most of a small one.

    >>> round(seconds_of_batch(128, lambda size: 2 + 0.1 * size), 6)
    14.8
    """
    few, many = min(2, most), min(8, most)
    less, seconds = seconds_of(few), seconds_of(many)
    while many < most and seconds < PATIENCE:
        few, less, many = many, seconds, min(4 * many, most)
        seconds = seconds_of(many)
    each = max(seconds - less, 0) / max(many - few, 1)
    return seconds + each * (most - many)


def fastest(step: Callable[[], Mapping[str, Tensor]]) -> float:
    """Seconds; the fastest of four is the one that nobody else disturbed, and never the first, unless all take long."""
    found = []
    while len(found) < 4 and sum(found) < PATIENCE:
        begun = time.perf_counter()
        for value in step().values():
            float(value)  # waits for the device
        found.append(time.perf_counter() - begun)
    return min(found[1:] or found)


def attack_passes(attack: str, scale: Scale) -> float:
    """Forward passes for each image."""
    if attack == "rays":
        return scale.queries * scale.robust
    if attack != "autoattack":
        return 20 * (1 + BACKWARD)
    steps, targets, queries = PARTS[scale.autoattack]
    return steps * (1 + BACKWARD) * (1 + 2 * targets * scale.robust) + queries * scale.robust


def evaluations(row: Row, job: Job, scale: Scale, protocols: Sequence[Protocol]) -> set[tuple[str, str, str]]:
    """(checkpoint, stored name, attack) of every verdict that a run still lacks."""
    found = set()
    for protocol in protocols:
        names = checkpoints(job.recipe, protocol)
        for cell in (*(source_of(cell, row) for cell in row.cells), ruling(row)):
            each = looked_at(cell, names, names[-1]) if cell.column != "clean" else []
            found |= {(name, stored_name(cell, scale), cell.attack) for name in each}
    return {one for one in found if not result_file(job.run, one[0], one[1]).exists()}


def estimate(plan: Plan, states: States, protocols: Sequence[Protocol], console: Console) -> Cost:
    """Measure each kind of run that is not finished or not judged, and add everything up."""
    paces, training, evaluation, kept = Paces(), {}, 0.0, 0
    sources = dict.fromkeys(job.recipe.data for job in plan.jobs.values())
    data = {source: source.load() for source in sources}  # before anything is measured: one may be missing
    rows: dict[str, list[Entry]] = {}
    for entry in plan.entries:
        rows.setdefault(entry.key, []).append(entry)
    with console.progress("measuring", len(plan.jobs)) as advance:
        for (key, seed), job in plan.jobs.items():
            advance()
            if job.run.divergence:
                continue
            left = 0 if states[key, seed] == "finished" else max(job.recipe.epochs - job.epochs, 1)
            lacking = {one for entry in rows.get(key, ()) for one in evaluations(entry.row, job, plan.scale, protocols)}
            if not left and not lacking:
                continue
            images = data[job.recipe.data]
            here = paces.of(job.recipe, images)
            held = len(images.val) if images.val is not None else 0
            val = held * here.forward * job.recipe.val_attack.steps * (1 + BACKWARD)
            if left:
                training[job.folder.name] = left * (len(images.train) * here.step + val)
                kept += here.bytes * (len(checkpoints(job.recipe, "paper")) + 4)
            for _, _, attack in lacking:
                n = min(plan.scale.images(attack) or len(images.test), len(images.test))
                evaluation += n * attack_passes(attack, plan.scale) * here.forward
    return Cost(training=training, evaluation=evaluation, bytes=kept)


class Paces(dict[Recipe, Pace]):
    """Each kind of run measured once."""

    def of(self, recipe: Recipe, data: Dataset) -> Pace:
        kind = kind_of(recipe)
        if kind not in self:
            self[kind] = pace(kind, data)
        return self[kind]
