"""Shared by the tests of methods with an inner attack or a preparation of their own: one step in double precision."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.cli import main
from rattle.forward import PairedForward
from rattle.models import create_model, find_head
from rattle.objectives import Objective
from rattle.objectives.base import Batch, Memory, Moment, StepContext, now
from rattle.randomness import ImageStreams
from rattle.training.loop import fit
from rattle.training.step import step
from rattle.weights import Noise
from support.training import Interrupting, Stop, content, tiny

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
    model, private, seen = copy.deepcopy(given.model), draws(len(given.x)), []
    memory = Memory({}, torch.arange(len(given.x)))
    context = StepContext(moment=moment or Moment(), draws=private, memory=memory, classes=given.classes)
    current, inner, prepare = now(objective, attack, context)
    head = find_head(model) if current.objective.needs.features else None
    terms = step(
        PairedForward(model, current.objective.needs, head),
        given.x,
        given.y,
        attack=inner,
        noise=Noise(sigma=0),
        objective=current,
        awp=None,
        shared=torch.Generator(),
        private=private,
        prepare=lambda batch: seen.append(prepare(batch)) or seen[-1],
    )
    return Stepped(float(sum(terms.values())), [p.grad for p in model.parameters()], seen[0])


def assert_same_step(ours: Stepped, loss: Tensor, twin: nn.Module, x_adv: Tensor) -> None:
    """The twin's loss, weight gradient and adversarial images are ours, to 1e-6."""
    twin.zero_grad()
    loss.backward()
    assert ours.loss == pytest.approx(float(loss.detach()), rel=1e-6)
    torch.testing.assert_close(ours.batch.x_adv, x_adv, rtol=0, atol=1e-6)
    for mine, p in zip(ours.gradients, twin.parameters(), strict=True):
        torch.testing.assert_close(mine, p.grad, rtol=1e-6, atol=1e-9)


def assert_trains_and_resumes(method: str, tmp_path: Path) -> None:
    """A recipe of that name trains and is evaluated; stopped inside an epoch and resumed it leaves the same files."""
    recipe = tiny(method, save_minutes=0, batch_size=40)
    recipe = replace(
        recipe,
        data=replace(recipe.data, train_size=80),
        attack=replace(recipe.attack, steps=3),
        val_attack=replace(recipe.val_attack, steps=1),
    )
    whole, parts = fit(recipe, tmp_path / "whole", log="none"), tmp_path / "parts"
    with pytest.raises(Stop):
        fit(recipe, parts, log="none", console=Interrupting(steps=3))
    assert content(fit(recipe, parts, log="none", resume=True)) == content(whole)
    assert main(["evaluate", str(whole.folder), "--attacks", "pgd2", "--n", "20"]) == 0
