"""What a plan will cost on this machine, from a few training steps of each kind of run; good to a factor of two.

A training step's seconds are divided by its passes through the network; attacks are counted in the same passes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from rattle.bench.limit import unavoidable_passes
from rattle.bench.measure import timed
from rattle.data import Dataset, on_device
from rattle.paper.plan import Plan, States
from rattle.paper.protocols import Protocol, checkpoints, missing_results
from rattle.paper.scales import Scale
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import replace_at
from rattle.runs.progress import Console
from rattle.training.loop import train_step, wrap_model
from rattle.training.state import init_state

BACKWARD = 2  # a backward pass costs about two forward ones
PATIENCE = 4.0  # seconds after which a step is not repeated, nor tried on a larger batch
# Of AutoAttack: steps of apgd-ce and of each target, targets of apgd-t and of fab-t, queries of square.
PARTS = {"autoattack": (100, 9, 5000), "smoke-ensemble": (10, 3, 100)}


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one image in a training step, and in one forward pass; and bytes of a checkpoint."""

    step: float
    forward: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that are left, and the disk space of the checkpoints."""

    training: dict[str, float]  # folder name -> seconds
    evaluation: float
    bytes: int

    @property
    def seconds(self) -> float:
        return sum(self.training.values()) + self.evaluation


def step_cost(recipe: Recipe, data: Dataset) -> StepCost:
    """A few steps, on ever larger batches up to the whole one, or until a step takes long."""
    state = init_state(recipe, data)
    state.progress.epoch = recipe.awp.warmup if recipe.awp else 0
    state.train_mode()
    (forward, ddp_forward), images = wrap_model(state.model, recipe), on_device(data.train, state.device)
    most = min(recipe.batch_size, len(images))

    def seconds_of(size: int) -> float:
        return fastest(lambda: train_step(state, forward, ddp_forward, images, torch.arange(size)))

    whole = seconds_of_batch(most, seconds_of)
    weights = sum(p.numel() * p.element_size() for p in state.model.parameters())
    passes = unavoidable_passes(recipe)
    forwards = passes.forward + BACKWARD * (passes.by_input + passes.full)
    return StepCost(whole / most, whole / most / forwards, weights)


def seconds_of_batch(most: int, seconds_of: Callable[[int], float]) -> float:
    """A step of the whole batch, from steps of a few images and what each further image adds.

    The cost that does not depend on the batch is counted once: it can be most of a small step.

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


def fastest(step: Callable[[], object]) -> float:
    """Seconds of the fastest of four, least disturbed by others; the first counts only when a step takes long."""
    found = []
    while len(found) < 4 and sum(found) < PATIENCE:
        found.append(timed(step)["wall"])
    return min(found[1:] or found)


def attack_passes(attack: str, scale: Scale) -> float:
    """Forward passes for each image."""
    if attack == "rays":
        return scale.queries * scale.robust
    if attack != "autoattack":
        return 20 * (1 + BACKWARD)
    steps, targets, queries = PARTS[scale.autoattack]
    return steps * (1 + BACKWARD) * (1 + 2 * targets * scale.robust) + queries * scale.robust


def estimate(plan: Plan, states: States, protocols: Sequence[Protocol], console: Console) -> Cost:
    """Measure each kind of run that is not finished or not evaluated, and add everything up."""
    costs: dict[Recipe, StepCost] = {}
    training, evaluation, disk = {}, 0.0, 0
    # All data are loaded before anything is measured: a dataset may be missing.
    data = {source: source.load() for source in dict.fromkeys(job.recipe.data for job in plan.jobs.values())}
    with console.progress("measuring", len(plan.jobs)) as advance:
        for (key, seed), job in plan.jobs.items():
            advance()
            if job.run.divergence:
                continue
            left = 0 if states[key, seed] == "finished" else max(job.recipe.epochs - job.epochs, 1)
            rows = [entry.row for entry in plan.entries if entry.key == key]
            missing = {one for row in rows for one in missing_results(row, job, plan.scale, protocols)}
            if not left and not missing:
                continue
            images, kind = data[job.recipe.data], replace(job.recipe, name="", seed=0, average=None)
            kind = replace_at(kind, "objective.taylor.eta", None)  # it changes the cost as little as the seed
            if kind not in costs:
                costs[kind] = step_cost(kind, images)
            cost, held_out = costs[kind], len(images.val) if images.val is not None else 0
            if left:
                validation = held_out * cost.forward * job.recipe.val_attack.steps * (1 + BACKWARD)
                training[job.folder.name] = left * (len(images.train) * cost.step + validation)
                disk += cost.bytes * (len(checkpoints(job.recipe, "paper")) + 4)
            for _, _, attack in missing:
                n = min(plan.scale.images(attack) or len(images.test), len(images.test))
                evaluation += n * attack_passes(attack, plan.scale) * cost.forward
    return Cost(training=training, evaluation=evaluation, bytes=disk)
