"""Seconds of a training step: of a few on this machine, or of one A100 as the paper's Table 6 has them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from rattle.bench.limit import convolutions, unavoidable_passes
from rattle.bench.measure import timed
from rattle.data import Dataset, on_device
from rattle.models.registry import create_model
from rattle.paper import tables
from rattle.paper.cost import EPOCH
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.training.minibatch import train_step
from rattle.training.ranks import wrap_model
from rattle.training.state import init_state

BACKWARD = 2  # a backward pass costs about two forward ones
PATIENCE = 4.0  # seconds after which a step is not repeated, nor tried on a larger batch


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one image in a training step, and in one forward pass; and bytes of a checkpoint."""

    step: float
    forward: float
    bytes: int


def forwards(recipe: Recipe) -> int:
    """The passes of a training step through the network, counted in forward ones."""
    passes = unavoidable_passes(recipe)
    return passes.forward + BACKWARD * (passes.by_input + passes.full)


def a100_cost(recipe: Recipe, data: Dataset) -> StepCost:
    """On one A100: Table 6's seconds for the order of the Taylor terms, scaled by multiplications and passes."""
    base = get_recipe(tables.WRN)
    seconds = [row.cell("seconds").value or 0.0 for row in tables.table(6).rows]  # of an epoch, for orders 0, 1 and 2
    order = getattr(getattr(recipe.objective, "taylor", None), "order", 0)
    (work, weights), (base_work, _) = (size_of(r.model, r.width, data.channels, data.size) for r in (recipe, base))
    forward = seconds[0] / EPOCH / forwards(base) * work / base_work
    return StepCost(forward * forwards(recipe) * seconds[order] / seconds[0], forward, weights)


@lru_cache
def size_of(model: str, width: int | None, channels: int, side: int) -> tuple[int, int]:
    """Multiplications in the convolutions of a network for one image, and bytes of its weights."""
    with torch.device("meta"):  # shapes alone: nothing is computed
        network = create_model(model, classes=10, channels=channels, width=width)
        found = convolutions(network, torch.zeros(1, channels, side, side))
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    return sum(shape.multiplications * count for shape, count in found.items()), weights


def step_cost(recipe: Recipe, data: Dataset) -> StepCost:
    """A few steps, on ever larger batches up to the whole one, or until a step takes long."""
    state = init_state(recipe, data)
    state.progress.epoch = recipe.awp.warmup if recipe.awp else 0
    state.train_mode()
    forward, ddp_forward = wrap_model(state.model, recipe, teachers=state.teachers)
    images = on_device(data.train, state.device)
    most = min(recipe.batch_size, len(images))

    def seconds_of(size: int) -> float:
        return fastest(lambda: train_step(state, forward, ddp_forward, images, torch.arange(size)))

    whole = seconds_of_batch(most, seconds_of) * recipe.replays
    weights = sum(p.numel() * p.element_size() for p in state.model.parameters())
    return StepCost(whole / most, whole / most / forwards(recipe), weights)


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
