"""One training step: the paper's Algorithm 1, line by line beside examples/algorithm1.py.

Knows no optimizer, rank or recipe: the caller passes what differs under DistributedDataParallel.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.forward import Outputs, PairedForward, full_precision
from rattle.inputs import images_checked
from rattle.objectives.base import Batch, Objective, StepContext, Terms, total
from rattle.weights import AWP, SAM, Delta, Noise, frozen_bn_stats, perturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """A minibatch, the model, and the parts of the method."""

    x: Tensor  # [n, C, H, W] in [0, 1]
    y: Tensor  # [n], or soft labels [n, C]
    forward: PairedForward  # the model as the objective needs it
    attack: PGD  # the inner maximisation
    noise: Noise  # u ~ N(0, sigma^2)
    objective: Objective  # the outer minimisation
    awp: AWP | SAM | None = None  # where the outer step is taken: at w + v, or at w
    context: StepContext  # moment of the run, memory, random numbers for each image
    shared: torch.Generator  # draws u, the same on every rank
    noise_samples: int = 1  # draws of u in the outer step
    weight: float = 1.0  # a micro-batch's share of the minibatch
    ddp_forward: Callable[..., Outputs] | None = None  # `forward`, averaging gradients over ranks


def step(given: StepInputs) -> Terms:
    """Compute the gradient of one minibatch: returns the named terms, adds their sum's gradient to every `.grad`."""
    x, y, awp, context = given.x, given.y, given.awp, given.context
    forward, model = given.forward, given.forward.model
    objective = given.objective
    attack = objective.attack(given.attack, context)

    # Sample u ~ N(0, sigma^2) and generate the adversarial examples at w + u.
    u = given.noise.at("inner")(model, generator=given.shared)
    with perturbed(model, u), images_checked():
        x_adv = attack(model, x, y, generator=context.draws)
    batch = objective.prepare(Batch(x=x, x_adv=x_adv, y=y), context)
    u = forward.draws(given.noise.at("outer"), given.noise_samples, generator=given.shared)

    def outer(forward: Callable[..., Outputs]) -> tuple[Outputs, Terms]:
        outputs = forward(batch.x, batch.x_adv, u, batch.extra)
        with full_precision(x.device):
            return outputs, objective.terms(outputs, batch.y, context)

    # With AWP or SAM, find the worst w + v near w. BatchNorm's statistics move once: at w + v with AWP, at w with SAM.
    v: Delta = {}
    if awp is not None:
        with nullcontext() if awp.holds_statistics else frozen_bn_stats(forward.teachers):
            gradients = awp.gradients(model, lambda: total(outer(forward)[1]))
        v = awp(model, context.reduce(gradients))

    # Optimise at w + v; w is restored before the optimizer steps.
    held = awp is not None and awp.holds_statistics
    with perturbed(model, v), frozen_bn_stats(forward) if held else nullcontext():
        outputs, terms = outer(given.ddp_forward or forward)
        (given.weight * total(terms)).backward()
    with torch.no_grad(), full_precision(x.device):
        objective.remember(outputs, batch.y, context)
    return {name: value.detach() for name, value in terms.items()}
