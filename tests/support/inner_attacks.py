"""Shared by the tests of methods with an inner attack or a preparation of their own: one step in double precision."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.models import create_model
from rattle.objectives import Objective
from rattle.objectives.base import Batch, Moment, StepContext
from rattle.randomness import ImageStreams
from rattle.training.step import step
from support.steps import step_inputs

SEED = 5


@dataclass(frozen=True)
class Problem:
    """A small network with BatchNorm and images that it mostly classifies as they are labelled."""

    model: nn.Module
    x: Tensor
    y: Tensor
    classes: int


def problem(classes: int, *, n: int = 14) -> Problem:
    model = create_model("cnn", classes=classes, channels=1, width=4)
    x = torch.rand(n, 1, 8, 8)
    with torch.no_grad():
        for _ in range(20):
            model(x)  # BatchNorm's statistics become those of the images
        model.eval().head.weight *= 2 / model(x).std(0).mean()  # sure of its classes, which a fresh network is not
        model.head.bias -= model(x).mean(0)  # or every image would be of one class
        y = model(x).argmax(1)
    y[0] = (y[0] + 1) % classes  # one that is misclassified from the beginning
    return Problem(model.train(), x, y, classes)


def draws(n: int) -> ImageStreams:
    return ImageStreams(SEED, torch.arange(n))


@dataclass(frozen=True)
class Stepped:
    """What one step of training computed."""

    loss: float
    gradients: list[Tensor]
    batch: Batch


def our_step(objective: Objective, attack: PGD, given: Problem, *, moment: Moment | None = None) -> Stepped:
    """One step of the library on a copy of the model."""
    model, x, y = copy.deepcopy(given.model), given.x, given.y
    when = {"moment": moment or Moment(), "classes": given.classes}
    terms = step(step_inputs(model, objective, attack, x, y, StepContext(draws=draws(len(x)), **when)))
    context = StepContext(draws=draws(len(x)), **when)
    x_adv = objective.attack(attack, context)(copy.deepcopy(given.model), x, y, generator=context.draws)
    batch = objective.prepare(Batch(x=x, x_adv=x_adv, y=y), context)
    return Stepped(float(sum(terms.values())), [p.grad for p in model.parameters()], batch)


def assert_same_step(ours: Stepped, loss: Tensor, twin: nn.Module, x_adv: Tensor) -> None:
    """The twin's loss, weight gradient and adversarial images are ours, to 1e-6."""
    twin.zero_grad()
    loss.backward()
    assert ours.loss == pytest.approx(float(loss.detach()), rel=1e-6)
    torch.testing.assert_close(ours.batch.x_adv, x_adv, rtol=0, atol=1e-6)
    for mine, p in zip(ours.gradients, twin.parameters(), strict=True):
        torch.testing.assert_close(mine, p.grad, rtol=1e-6, atol=1e-9)
