"""What a benchmark runs on: a network, a batch of images that it classifies, and one library step of a recipe."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn
from torch.profiler import record_function

from rattle.errors import RattleError
from rattle.forward import PairedForward
from rattle.models import find_head
from rattle.models.registry import create_model
from rattle.objectives.base import StepContext
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.training.state import make_optimizer
from rattle.training.step import StepInputs, step

WARMUP_STEPS = 12  # plain training steps before anything is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of a benchmark."""

    model: str = "preact18"
    width: int | None = None  # channels of its first stage; the published width when None
    batch: int = 32
    classes: int = 10
    side: int = 32  # pixels
    steps: int = 10  # K of the inner maximisation
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    channels_last: bool = True
    clock: Literal["auto", "wall", "processor"] = "auto"  # that ratios are counted by

    def __post_init__(self) -> None:
        for name, least in (("batch", 2), ("steps", 1), ("classes", 3), ("side", 8)):
            if getattr(self, name) < least:
                raise RattleError(f"{name} must be >= {least}, got {getattr(self, name)}")

    @property
    def torch_device(self) -> torch.device:
        return distributed.choose_device(self.device)

    @property
    def ratio_clock(self) -> str:
        """auto is processor seconds on a CPU, which other processes hardly change, and else the wall clock."""
        if self.clock != "auto":
            return self.clock
        return "processor" if self.torch_device.type == "cpu" else "wall"

    @property
    def layout(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format


@dataclass(frozen=True, slots=True)
class Subject:
    """A network and a batch, as a user would hold them (`plain`) and as the library lays them out."""

    setup: Setup
    plain: nn.Module
    x_plain: Tensor
    y: Tensor

    @property
    def fast(self) -> nn.Module:
        """A copy of the network in the library's memory layout."""
        return copy.deepcopy(self.plain).to(memory_format=self.setup.layout)  # type: ignore[call-overload]

    @property
    def x(self) -> Tensor:
        return self.x_plain.contiguous(memory_format=self.setup.layout)

    @property
    def autocast(self) -> torch.autocast:
        return torch.autocast(self.x_plain.device.type, torch.bfloat16, enabled=self.setup.precision == "bf16")

    def streams(self) -> ImageStreams:
        return ImageStreams(0, torch.arange(len(self.y), device=self.y.device))


def prepare(setup: Setup) -> Subject:
    """A network after a few training steps on images of one pattern a class, so that attacks do not succeed at once."""
    device = setup.torch_device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = create_model(setup.model, classes=setup.classes, width=setup.width).to(device)
        patterns = torch.rand(setup.classes, 3, setup.side // 4, setup.side // 4)
        patterns = F.interpolate(patterns, (setup.side, setup.side), mode="bilinear")
        y = torch.arange(setup.batch) % setup.classes
        x = (0.7 * patterns[y] + 0.3 * torch.rand(setup.batch, 3, setup.side, setup.side)).to(device)
    y = y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(WARMUP_STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    update_bn([x], model)  # running statistics are those of the batch
    return Subject(setup, model, x, y)


def recipe_of(setup: Setup, method: str, *, steps: int | None = None) -> Recipe:
    """The recipe of a method on CIFAR-10 images, l_inf 8/255, with K as the setup says."""
    recipe = get_recipe(f"cifar10-linf-{setup.model}-{method}")
    optimizer = replace(recipe.optimizer, lr=1e-6)  # weights hardly move: every round does the same work
    return replace(recipe, attack=replace(recipe.attack, steps=steps or setup.steps), optimizer=optimizer)


def library_step(
    subject: Subject, method: str, *, steps: int | None = None, **changes: Any
) -> Callable[[], dict[str, Tensor]]:
    """A whole step of a recipe: attack, terms, gradient, optimizer. A profiler finds its parts by name.

    steps: K, when it is not the setup's; changes: other fields of the recipe.
    """
    recipe, model = replace(recipe_of(subject.setup, method, steps=steps), **changes), subject.fast.train()
    optimizer, needs = make_optimizer(recipe, model), recipe.objective.needs
    forward = PairedForward(model, needs, find_head(model) if needs.features else None)
    if subject.setup.compile:
        model.compile()
        forward.compile()
    inputs: dict[str, Any] = {name: getattr(recipe, name) for name in ("noise", "objective", "awp", "noise_samples")}
    inputs["attack"] = record_function("rattle: inner maximisation")(recipe.attack)
    inputs["ddp_forward"] = record_function("rattle: outer forwards at x and x'")(forward)
    inputs |= {"forward": forward, "x": subject.x, "y": subject.y}

    def run() -> dict[str, Tensor]:
        optimizer.zero_grad(set_to_none=True)
        shared = torch.Generator().manual_seed(0)
        with record_function("rattle: step"), subject.autocast:
            terms = step(StepInputs(**inputs, shared=shared, context=StepContext(draws=subject.streams())))
        optimizer.step()
        return terms

    return run
