"""One training step: the paper's Algorithm 1, line by line beside examples/algorithm1.py.

Knows no optimizer, rank or recipe: the caller passes what differs under DistributedDataParallel.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from rattle.attacks import Attack
from rattle.forward import Outputs, PairedForward
from rattle.objectives.base import Batch, mixed_terms, same, total
from rattle.randomness import ImageStreams
from rattle.weights import ASAM, AWP, SAM, Noise, frozen_bn_stats, perturbed


def step(
    forward: PairedForward,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack,
    noise: Noise,
    objective: Callable[..., dict[str, Tensor]],
    awp: AWP | SAM | ASAM | None,
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
    objective, awp: the parts of the method. shared: draws u, the same on every rank. private: draws for each image.
    prepare: what the objective does to the images before it looks at them. noise_samples: draws of u in the outer step.
    weight: the share of a micro-batch in its minibatch. ddp_forward: `forward` inside the wrapper that averages
    gradients over ranks. reduce: averages tensors over ranks.
    """
    model = forward.model
    # Sample u ~ N(0, sigma^2) and generate the adversarial examples at w + u.
    with perturbed(model, noise.at("inner")(model, generator=shared)):
        x_adv = attack(model, x, y, generator=private)
    batch = prepare(Batch(x=x, x_adv=x_adv, y=y))
    # The readings that average over u in the outer step draw it afresh, the same for x and x'.
    u = forward.draws(noise.at("outer"), noise_samples, generator=shared)
    terms_of = partial(mixed_terms, objective, y=batch.y, share=forward.spec.share, reduce=reduce)
    # Optimise at w or, with AWP or SAM, at the worst w + v nearby; w is restored before the optimizer steps.
    images = batch.x, batch.x_adv, u, batch.extra
    v = awp(model, reduce(awp.gradients(model, lambda: total(terms_of(forward(*images)))))) if awp else {}
    with perturbed(model, v), frozen_bn_stats(model) if awp and awp.holds_statistics else nullcontext():
        terms = terms_of((ddp_forward or forward)(*images))
        (weight * total(terms)).backward()
    return {name: value.detach() for name, value in terms.items()}
