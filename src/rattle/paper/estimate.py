"""Roughly what the training of a plan costs on one A100: Table 6, scaled to the passes and operations of a network."""

from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from rattle.models.registry import create_model
from rattle.paper import tables
from rattle.paper.plan import Plan, States
from rattle.paper.protocols import protocol_checkpoints
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.io import read_jsonl
from rattle.training.teachers import trained_first

EPOCH = 50_000  # training images of CIFAR-10


def step_passes(recipe: Recipe) -> int:
    """Forward and backward passes of one image in a training step: the attack, then x and x', twice with AWP.

    An attack that may stop early counts as if no image did.
    """
    outer = 4 if recipe.awp else 2
    return recipe.replays * (recipe.attack.steps + outer)


@lru_cache
def network_size(model: str, width: int | None) -> tuple[int, int]:
    """Operations of a forward pass of two 32x32 images, and bytes of the weights."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:  # shapes alone: nothing is computed
        network = create_model(model, classes=10, channels=3, width=width)
        network(torch.zeros(2, 3, 32, 32))
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    return counter.get_total_flops(), weights


def epoch_seconds(recipe: Recipe, images: int = EPOCH) -> float:
    """Seconds of an epoch on an A100; the Taylor terms cost what Table 6 says of their order."""
    order = getattr(getattr(recipe.objective, "taylor", None), "order", 0)
    seconds = tables.table(6).rows[order].cell("seconds").value or 0.0
    base = get_recipe(tables.WRN)
    work, _ = network_size(recipe.model, recipe.width)
    base_work, _ = network_size(base.model, base.width)
    return seconds * images / EPOCH * step_passes(recipe) / step_passes(base) * work / base_work


def estimate(plan: Plan, states: States) -> tuple[float, int]:
    """A100 seconds of the training that is left, and bytes of the checkpoints that it will write."""
    seconds, disk = 0.0, 0
    for key, job in plan.jobs.items():
        if states[key] in ("finished", "diverged"):
            continue
        to_train = [(job.recipe, max(job.recipe.epochs - len(read_jsonl(job.run.metrics, [])), 1))]
        to_train += [(recipe, recipe.epochs) for _, recipe in trained_first(job.recipe, job.run).values()]
        for recipe, epochs in to_train:
            seconds += epochs * epoch_seconds(recipe, recipe.data.train_size or EPOCH)
            _, weights = network_size(recipe.model, recipe.width)
            disk += weights * (len(protocol_checkpoints(recipe, "paper")) + 4)
    return seconds, disk
