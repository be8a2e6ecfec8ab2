"""What a plan will cost, to a factor of two; attacks are counted in passes through the network, as a step's are.

The published networks are not timed where there is no GPU: nobody would train them there. Their cost is an A100's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from rattle.data import Dataset, Images
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.paper.plan import Plan, States
from rattle.paper.protocols import Protocol, checkpoints, missing_results
from rattle.paper.scales import Scale
from rattle.paper.step_cost import BACKWARD, StepCost, a100_cost, step_cost
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import replace_at
from rattle.runs.distributed import choose_device
from rattle.runs.progress import Console
from rattle.training.sweep import Job
from rattle.training.teachers import trained_first

# Of AutoAttack: steps of apgd-ce and of each target, targets of apgd-t and of fab-t, queries of square.
PARTS = {"autoattack": (100, 9, 5000), "smoke-ensemble": (10, 3, 100)}
# Training images, test images and classes of the paper's datasets, whose images are 32x32 RGB.
SIZES = {"cifar10": (50_000, 10_000, 10), "cifar100": (50_000, 10_000, 100), "svhn": (73_257, 26_032, 10)}


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


def stand_in(data: Data) -> Dataset:
    """One image, as often as a published dataset has images: for a plan without the data."""
    train, test, classes = SIZES[data.name]
    held_out = data.val_size or 0  # the recipes of these datasets say how many
    one = torch.randint(256, (1, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)

    def images(n: int) -> Images:
        return Images(one.expand(n, -1, -1, -1), torch.arange(n) % classes)

    return Dataset(
        name=data.name,
        train=images(data.train_size or train - held_out),
        val=images(held_out) if held_out else None,
        test=images(test),
        classes=tuple(map(str, range(classes))),
    )


def datasets(plan: Plan, console: Console, *, assume: bool) -> dict[Data, Dataset]:
    """The data of a plan, all loaded before anything is measured. assume: see `estimate`."""
    found = {}
    for data in dict.fromkeys(job.recipe.data for job in plan.jobs.values()):
        try:
            found[data] = data.load()
        except RattleError as reason:
            if not assume or data.name not in SIZES:
                raise
            console.log(f"{reason}; the plan counts with its published size")
            found[data] = stand_in(data)
    return found


def attack_passes(attack: str, scale: Scale) -> float:
    """Forward passes for each image."""
    if attack == "rays":
        return scale.queries * scale.robust
    if attack != "autoattack":
        return 20 * (1 + BACKWARD)
    steps, targets, queries = PARTS[scale.autoattack]
    return steps * (1 + BACKWARD) * (1 + 2 * targets * scale.robust) + queries * scale.robust


def unfinished(job: Job, left: int) -> list[tuple[Job, int]]:
    """What training a run takes, with the epochs left: the run itself, and its teachers that come first."""
    if not left:
        return []
    teachers = [Job(run.folder, recipe) for run, recipe in trained_first(job.recipe, job.run).values()]
    return [(job, left), *((each, max(each.recipe.epochs - each.epochs, 0)) for each in teachers)]


def kind_of(recipe: Recipe) -> Recipe:
    """The recipe without what changes the cost of a step as little as its seed."""
    kind = replace(recipe, name="", seed=0, average=None)
    return replace_at(kind, "objective.taylor.eta", None) if hasattr(kind.objective, "taylor") else kind


def seconds_of_epoch(recipe: Recipe, cost: StepCost, images: Dataset) -> float:
    """Seconds of an epoch and its validation."""
    held_out = len(images.val) if images.val is not None else 0
    return len(images.train) * cost.step + held_out * cost.forward * recipe.val_attack.steps * (1 + BACKWARD)


def estimate(plan: Plan, states: States, protocols: Sequence[Protocol], console: Console, *, assume: bool) -> Cost:
    """Measure each kind of run that is not finished or not evaluated, and add everything up.

    assume: take the published size of a dataset that is not here, instead of refusing.
    """
    device = choose_device().type
    device = "a100" if device == "cpu" and not plan.scale.models else device
    seconds, disk, data = 0.0, 0, datasets(plan, console, assume=assume)
    cost_of = lru_cache(maxsize=None)(a100_cost if device == "a100" else step_cost)
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
            images = data[job.recipe.data]
            cost = cost_of(kind_of(job.recipe), images)
            for each, epochs in unfinished(job, left):
                own = cost_of(kind_of(each.recipe), images)
                seconds += epochs * seconds_of_epoch(each.recipe, own, images)
                disk += own.bytes * (len(checkpoints(each.recipe, "paper")) + 4)
            for _, _, attack in missing:
                n = min(plan.scale.images(attack) or len(images.test), len(images.test))
                seconds += n * attack_passes(attack, plan.scale) * cost.forward
    return Cost(seconds=seconds, bytes=disk, device=device)
