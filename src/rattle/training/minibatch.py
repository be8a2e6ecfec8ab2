"""The gradient of one minibatch of a run: builds what the step of Algorithm 1 takes, and calls it.

`numerics` sets the switches of torch that trade speed for bits.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rattle.data import Images, to_device
from rattle.errors import RattleError, first_line
from rattle.forward import PairedForward
from rattle.objectives.trades import Released
from rattle.randomness import derive_seed
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.training.batches import augmented, context_of, ramped_attack
from rattle.training.metrics import term_observer
from rattle.training.ranks import sync_with_last
from rattle.training.state import WEIGHTS, TrainState
from rattle.training.step import StepInputs, step


def train_step(
    state: TrainState, forward: PairedForward, ddp_forward: nn.Module, images: Images, index: Tensor
) -> dict[str, Tensor]:
    """The gradient of one minibatch; everything random is a function of seed, epoch, image and step.

    With `accumulate` the minibatch goes through the same step in micro-batches, whose gradients add up. Each has its
    own BatchNorm statistics, head gradients and AWP direction; all have the same u.
    """
    recipe, progress, device = state.recipe, state.progress, state.device
    sums: dict[str, Tensor] = {}
    parts = to_device(index, images.y.device).chunk(recipe.accumulate)
    for number, part in enumerate(parts):
        x, y = augmented(state, images, part)
        given = StepInputs(
            x=x,
            y=y,
            forward=forward,
            attack=ramped_attack(recipe, progress.epoch),
            noise=recipe.noise,
            objective=recipe.objective,
            awp=recipe.awp if recipe.awp and progress.epoch >= recipe.awp.warmup else None,
            context=context_of(state, part, distributed.rank() * len(index) + number * len(parts[0])),
            shared=torch.Generator().manual_seed(derive_seed(recipe.seed, WEIGHTS, progress.step)),
            noise_samples=recipe.noise_samples,
            weight=len(part) / len(index),
            ddp_forward=ddp_forward,
            observe=term_observer(state),
        )
        # No cache: the step moves weights in place, and a cached copy in bfloat16 would not move along.
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16", cache_enabled=False)
        with autocast, sync_with_last(ddp_forward, number == len(parts) - 1):
            terms = released(given, state) if isinstance(recipe.objective, Released) else step(given)
        for name, value in terms.items():
            sums[name] = given.weight * value + sums.get(name, 0)
    return sums


def released(given: StepInputs, state: TrainState) -> dict[str, Tensor]:
    """The step of the authors' script for this recipe; for ResNet-18 they have one of its own."""
    from rattle.training.released import released_step

    recipe = state.recipe

    return released_step(
        given,
        awp_script=recipe.awp is not None,
        resnet=recipe.model in ("preact18", "resnet18"),
        weight_decay=recipe.optimizer.weight_decay,
    )


@contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Train with deterministic algorithms or in TF32, where the recipe says so (docs/guides/scale.md)."""
    if recipe.precision == "tf32" and device.type != "cuda":
        raise RattleError(f"precision tf32 is for NVIDIA GPUs, this is {device.type}: use fp32")
    if recipe.precision == "bf16":
        refuse_without_bf16(device)
    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first matrix product runs
        torch.use_deterministic_algorithms(True)
    if recipe.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    except RuntimeError as reason:
        if recipe.deterministic and "deterministic" in str(reason):
            raise RattleError(f"--deterministic: {first_line(reason)}") from reason
        raise
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_float32_matmul_precision(before[1])


def refuse_without_bf16(device: torch.device) -> None:
    """Refuse a device whose autocast has no bfloat16: an older GPU, or a kind that torch has no autocast for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # on some kinds torch warns, and computes in float32
            torch.autocast(device.type, torch.bfloat16)
    except (RuntimeError, UserWarning) as reason:
        why = first_line(reason).rstrip(".")
        raise RattleError(f"precision bf16 is not for this device ({device.type}), use fp32: {why}") from reason
