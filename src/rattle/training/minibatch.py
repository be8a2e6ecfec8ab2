"""The gradient of one minibatch of a run: builds what the step of Algorithm 1 takes, and calls it."""

import torch
from torch import Tensor, nn

from rattle.data import Images, to_device
from rattle.forward import PairedForward
from rattle.objectives.trades import Released
from rattle.randomness import derive_seed
from rattle.runs import distributed
from rattle.training.batches import augmented, context_of, ramped_attack
from rattle.training.ranks import sync_with_last
from rattle.training.state import WEIGHTS, TrainState
from rattle.training.step import StepInputs, step
from rattle.training.term_weights import term_observer


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
