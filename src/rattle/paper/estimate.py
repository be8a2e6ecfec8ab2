"""Roughly what a plan costs: forward passes through each network, times the seconds of one pass.

The seconds are measured on this machine. The published networks are not trained on a CPU: where there is no GPU, their
seconds are those of an A100, from Table 6 and the operations (FLOP) of each network.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.paper import tables
from rattle.paper.plan import Plan, States
from rattle.paper.protocols import Protocol, checkpoints, missing_results
from rattle.paper.scales import Scale
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.distributed import choose_device
from rattle.runs.progress import Console
from rattle.training.teachers import trained_first

BOTH = 3  # a forward and a backward pass cost about three forward ones
EPOCH = 50_000  # training images of CIFAR-10
# Of AutoAttack: steps of APGD-CE and of each target, targets of APGD-T and of FAB-T, queries of Square.
PARTS = {"autoattack": (100, 9, 5000), "smoke-ensemble": (10, 3, 100)}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many images a dataset has, and their channels and side."""

    train: int
    val: int
    test: int
    channels: int = 3
    side: int = 32


PUBLISHED = {"cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "svhn": (73_257, 26_032)}  # train, test


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of training and attacks that are left, and the disk space of the checkpoints."""

    seconds: float
    bytes: int
    device: str  # that takes the seconds: cpu, cuda or mps of this machine, or a100

    def __str__(self) -> str:
        hours = "hours" if self.device == "cpu" else "GPU-hours"
        where = "on one A100" if self.device == "a100" else "on this machine"
        return f"about {amount(self.seconds, hours)} {where}, give or take a factor of 2"


def amount(seconds: float, hours: str = "hours") -> str:
    """Seconds to two figures: an estimate knows no more. hours: what the largest unit is called.

    >>> amount(58.3), amount(4000), amount(9.84e6, "GPU-hours")
    ('58 s', '67 min', '2,700 GPU-hours')
    """
    units = {"s": 1.0, "min": 60.0, hours: 3600.0}
    unit = next((name for name, size in units.items() if seconds < 100 * size), hours)
    rounded = float(f"{seconds / units[unit]:.2g}")
    return f"{rounded:,.0f} {unit}" if rounded >= 10 else f"{rounded:g} {unit}"


def sizes_of(data: Data, console: Console, *, assume: bool) -> Sizes:
    """The sizes of a dataset. assume: take the published ones if it is not here, instead of refusing."""
    try:
        found = data.load()
    except RattleError as reason:
        if not assume or data.name not in PUBLISHED:
            raise
        console.log(f"{reason}; the plan counts with its published size")
        train, test = PUBLISHED[data.name]
        val = data.val_size or 0
        return Sizes(data.train_size or train - val, val, test)
    val = len(found.val) if found.val is not None else 0
    return Sizes(len(found.train), val, len(found.test), found.channels, found.size)


def step_passes(recipe: Recipe) -> float:
    """Forward passes of one image in a training step: the attack, then x and x', twice with AWP.

    An attack that may stop early counts as if no image did.
    """
    outer = 4 if recipe.awp else 2
    return recipe.replays * BOTH * (recipe.attack.steps + outer)


def attack_passes(attack: str, scale: Scale) -> float:
    """Forward passes of one test image in an attack."""
    if attack == "rays":
        return scale.queries * scale.robust
    if attack != "autoattack":
        return 20 * BOTH
    steps, targets, queries = PARTS[scale.autoattack]
    return steps * BOTH * (1 + 2 * targets * scale.robust) + queries * scale.robust


@lru_cache
def network_size(model: str, width: int | None, channels: int, side: int) -> tuple[int, int]:
    """Operations of one forward pass of one image, and bytes of the weights."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:  # shapes alone: nothing is computed
        network = create_model(model, classes=10, channels=channels, width=width)
        network(torch.zeros(2, channels, side, side))
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    return counter.get_total_flops() // 2, weights


@lru_cache
def measured_seconds(model: str, width: int | None, channels: int, side: int, batch: int) -> float:
    """Seconds of one forward pass of one image on this machine: the fastest of three steps of a batch."""
    device = choose_device()
    network = create_model(model, classes=10, channels=channels, width=width).to(device)
    x = torch.rand(batch, channels, side, side, device=device)
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        network(x).logsumexp(1).sum().backward()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times) / BOTH / batch


def forward_seconds(recipe: Recipe, sizes: Sizes, device: str) -> float:
    """Seconds of one forward pass of one image."""
    shape = (sizes.channels, sizes.side)
    if device != "a100":
        return measured_seconds(recipe.model, recipe.width, *shape, min(recipe.batch_size, sizes.train))
    base = get_recipe(tables.WRN)
    seconds = tables.table(6).rows[0].cell("seconds").value or 0.0
    work, _ = network_size(recipe.model, recipe.width, *shape)
    base_work, _ = network_size(base.model, base.width, 3, 32)
    return seconds / EPOCH / step_passes(base) * work / base_work


def epoch_seconds(recipe: Recipe, sizes: Sizes, device: str) -> float:
    """Seconds of an epoch and its validation; on an A100 the Taylor terms cost what Table 6 says of their order."""
    training = sizes.train * step_passes(recipe)
    if device == "a100":
        seconds = [row.cell("seconds").value or 0.0 for row in tables.table(6).rows]  # of orders 0, 1 and 2
        training *= seconds[getattr(getattr(recipe.objective, "taylor", None), "order", 0)] / seconds[0]
    return (training + sizes.val * BOTH * recipe.val_attack.steps) * forward_seconds(recipe, sizes, device)


def estimate(plan: Plan, states: States, protocols: Sequence[Protocol], console: Console, *, assume: bool) -> Cost:
    """The cost of all that is not trained or not attacked yet.

    assume: take the published size of a dataset that is not here, instead of refusing.
    """
    device = choose_device().type
    if device == "cpu" and not plan.scale.models:
        device = "a100"
    data = {}
    for job in plan.jobs.values():
        if job.recipe.data not in data:
            data[job.recipe.data] = sizes_of(job.recipe.data, console, assume=assume)
    seconds, disk = 0.0, 0
    for (key, seed), job in plan.jobs.items():
        if job.run.divergence:
            continue
        sizes = data[job.recipe.data]
        if states[key, seed] != "finished":
            to_train = [(job.recipe, max(job.recipe.epochs - job.epochs, 1))]
            to_train += [(recipe, recipe.epochs) for _, recipe in trained_first(job.recipe, job.run).values()]
            for recipe, epochs in to_train:
                seconds += epochs * epoch_seconds(recipe, sizes, device)
                _, weights = network_size(recipe.model, recipe.width, sizes.channels, sizes.side)
                disk += weights * (len(checkpoints(recipe, "paper")) + 4)
        missing = set()
        for entry in plan.entries:
            if entry.key == key:
                missing |= missing_results(entry.row, job, plan.scale, protocols)
        for _, _, attack in missing:
            n = min(plan.scale.images(attack) or sizes.test, sizes.test)
            seconds += n * attack_passes(attack, plan.scale) * forward_seconds(job.recipe, sizes, device)
    return Cost(seconds=seconds, bytes=disk, device=device)
