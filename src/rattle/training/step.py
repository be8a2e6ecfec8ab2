"""One training step: the paper's Algorithm 1, line by line beside examples/algorithm1.py.

Knows no optimizer, rank or recipe: the caller passes what differs under DistributedDataParallel.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.forward import Outputs, PairedForward
from rattle.inputs import images_checked
from rattle.objectives.base import Batch, mixed_terms, same, total
from rattle.randomness import ImageStreams
from rattle.weights import ASAM, AWP, SAM, Noise, add_decay, frozen_bn_stats, perturbed


def step(
    forward: PairedForward,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack,
    noise: Noise,
    objective: Callable[..., dict[str, Tensor]],
    awp: AWP | SAM | ASAM | None,
    awp_objective: Callable[..., dict[str, Tensor]] | None = None,
    shared: torch.Generator,
    private: ImageStreams,
    prepare: Callable[[Batch], Batch] = same,
    noise_samples: int = 1,
    weight: float = 1.0,
    ddp_forward: Callable[..., Outputs] | None = None,
    reduce: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict,
) -> dict[str, Tensor]:
    """Compute the gradient of one minibatch: returns the named terms, adds their sum's gradient to every `.grad`.

    forward: the model as the objective needs it; x [n, C, H, W] in [0, 1], y [n]: the minibatch. attack, noise,
    objective, awp: the parts of the method, awp_objective: what AWP climbs, if it is not the objective.
    shared: draws u, the same on every rank. private: draws for each image.
    prepare: what the objective does to the images before it looks at them. noise_samples: draws of u in the outer step.
    weight: a micro-batch's share. ddp_forward: `forward`, averaging gradients over ranks, as `reduce` does tensors.
    """
    model = forward.model
    # Sample u ~ N(0, sigma^2) and generate the adversarial examples at w + u.
    with perturbed(model, noise.at("inner")(model, generator=shared)), images_checked():
        x_adv = attack(model, x, y, generator=private)
    batch = prepare(Batch(x=x, x_adv=x_adv, y=y))
    images = batch.x, batch.x_adv, forward.draws(noise.at("outer"), noise_samples, generator=shared), batch.extra
    terms_of = partial(mixed_terms, y=batch.y, share=forward.spec.share, reduce=reduce)
    # Optimise at w or, with AWP or SAM, at the worst w + v nearby; w is restored before the optimizer steps.
    v = climb(awp, forward, lambda: total(terms_of(awp_objective or objective, forward(*images))), reduce)
    with perturbed(model, v), statistics_held(forward, awp, at_w=False):
        terms = terms_of(objective, (ddp_forward or forward)(*images))
        (weight * total(terms)).backward()
    add_decay(model, v, weight * awp.decay if isinstance(awp, AWP) else 0.0)
    return {name: value.detach() for name, value in terms.items()}


def climb(
    awp: AWP | SAM | ASAM | None, forward: PairedForward, loss: Callable[[], Tensor], reduce: Callable
) -> dict[str, Tensor]:
    """v, the move to where the loss is worse; none without AWP, SAM or ASAM."""
    with statistics_held(forward.teachers, awp, at_w=True):
        return awp(forward.model, reduce(awp.gradients(forward.model, loss))) if awp else {}


def statistics_held(module: nn.Module, awp: AWP | SAM | ASAM | None, *, at_w: bool) -> AbstractContextManager[None]:
    """BatchNorm's statistics move in one of two passes: at w + v with AWP, at w with SAM."""
    held = awp is not None and awp.holds_statistics != at_w
    return frozen_bn_stats(module) if held else nullcontext()
