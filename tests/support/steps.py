"""One step of the library beside a literal twin: its inputs, and the comparison of losses and gradients."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rattle.forward import PairedForward
from rattle.models import find_head
from rattle.objectives.base import Objective, StepContext
from rattle.training.step import StepInputs
from rattle.weights import Noise


def step_inputs(
    model: nn.Module, objective: Objective, attack: Any, x: Tensor, y: Tensor, context: StepContext, **more: Any
) -> StepInputs:
    """The inputs of a step, without noise unless `more` has it; the context's teachers are passed on.

    more: fields of StepInputs, and the average of the weights.
    """
    head = find_head(model) if objective.needs.features else None
    return StepInputs(
        x=x,
        y=y,
        forward=PairedForward(model, objective.needs, head, context.teachers, more.pop("average", None)),
        attack=attack,
        objective=objective,
        context=context,
        **{"noise": Noise(sigma=0), "shared": torch.Generator(), **more},
    )


def assert_same_gradient(loss: Tensor, wanted: Tensor, weights: Iterable[Tensor]) -> None:
    """Two losses and their gradients by the weights are equal."""
    weights = list(weights)
    torch.testing.assert_close(loss, wanted, rtol=1e-9, atol=0)
    ours, theirs = torch.autograd.grad(loss, weights), torch.autograd.grad(wanted, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
