"""The gradient of one minibatch of a run: builds what the step of Algorithm 1 takes, and calls it."""

import torch
from torch import Tensor, nn

from rattle.data import Images, to_device
from rattle.forward import PairedForward
from rattle.objectives.base import now
from rattle.randomness import derive_seed
from rattle.runs import distributed
from rattle.training.batches import augmented, context_of, ramped_attack
from rattle.training.ranks import sync_with_last
from rattle.training.state import WEIGHTS, TrainState
from rattle.training.step import step
from rattle.training.term_weights import climbed, weighed


def train_step(
    state: TrainState, forward: PairedForward, ddp_forward: nn.Module, images: Images, index: Tensor
) -> dict[str, Tensor]:
    """The gradient of one minibatch; everything random is a function of seed, epoch, image and step.

    With `accumulate` the minibatch goes through the same step in micro-batches, whose gradients add up. Each has its
    own BatchNorm statistics, head gradients and AWP direction; all have the same u.
    """
    recipe, progress, device = state.recipe, state.progress, state.device
    seed, epoch, sums = recipe.seed, progress.epoch, {}
    parts = to_device(index, images.y.device).chunk(recipe.accumulate)
    in_float32 = torch.autocast(device.type, enabled=False)  # losses, products too
    for number, part in enumerate(parts):
        weight, (x, y) = len(part) / len(index), augmented(state, images, part)
        # No cache: the step moves weights in place, and a cached copy in bfloat16 would not move along.
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16", cache_enabled=False)
        context = context_of(state, part, distributed.rank() * len(index) + number * len(parts[0]))
        objective, attack, prepare = now(recipe.objective, ramped_attack(recipe, epoch), context)
        with autocast, sync_with_last(ddp_forward, number == len(parts) - 1):
            terms = step(
                forward,
                x,
                y,
                attack=attack,
                noise=recipe.noise,
                objective=in_float32(weighed(objective, forward.model, state)),
                awp=recipe.awp if recipe.awp and epoch >= recipe.awp.warmup else None,
                awp_objective=in_float32(climbed(objective, recipe.awp)),
                shared=torch.Generator().manual_seed(derive_seed(seed, WEIGHTS, progress.step)),
                private=context.draws,
                prepare=prepare,
                noise_samples=recipe.noise_samples,
                weight=weight,
                ddp_forward=ddp_forward,
                reduce=distributed.mean_over_ranks,
            )
        objective.remember()
        sums = {name: weight * value + sums.get(name, 0) for name, value in terms.items()}
    return sums
