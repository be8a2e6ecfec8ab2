"""Free adversarial training beside a plain twin, over several updates with their optimizer."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.data import Augment
from rattle.data.registry import Data, batches
from rattle.objectives.free import Free
from rattle.randomness import derive_seed
from rattle.recipes.catalog import get_recipe, make_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import Piecewise
from rattle.runs.checkpoint import read_checkpoint
from rattle.training.loop import fit
from rattle.training.state import ORDER

EPSILON, RATE, BATCH, REPLAYS = 0.1, 0.05, 10, 3


def network(classes: int) -> nn.Module:
    torch.manual_seed(classes)
    head = nn.Linear(36, classes)
    nn.init.normal_(head.weight)
    return nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), head)


def images(classes: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(30, 1, 4, 4).mul(1.2).sub(0.1).clamp(0, 1), torch.arange(30) * 7 % classes  # some pixels 0 or 1


def recipe_of(norm: Any = "linf", **changes: Any) -> Recipe:
    data = Data(name="memory", val_size=0, augment=Augment(pad=0, flip=False))
    usual = {
        "epochs": 2,
        "batch_size": BATCH,
        "threads": 1,
        "objective": Free(replays=REPLAYS),
        "schedule": Piecewise(drops=()),
    }
    recipe = make_recipe("free", data=data, norm=norm, epsilon=EPSILON, **usual | changes)
    return replace(recipe, optimizer=replace(recipe.optimizer, lr=RATE, weight_decay=0.0))


def twin(model: nn.Module, x: Tensor, y: Tensor, recipe: Recipe) -> Tensor:
    """Algorithm 1 of the paper, and SGD with momentum written out."""
    delta, velocity = torch.zeros(BATCH, 1, 4, 4), [torch.zeros_like(p) for p in model.parameters()]
    model.train()
    for epoch in range(recipe.epochs):
        for index in batches(len(x), BATCH, seed=derive_seed(recipe.seed, ORDER), epoch=epoch):
            for _ in range(REPLAYS):
                moved = delta.clone().requires_grad_()
                loss = F.cross_entropy(model((x[index] + moved).clamp(0, 1)), y[index])
                *gradients, by_delta = torch.autograd.grad(loss, [*model.parameters(), moved])
                for i in range(BATCH):
                    if recipe.attack.threat.norm == "linf":
                        delta[i] = (delta[i] + EPSILON * by_delta[i].sign()).clamp(-EPSILON, EPSILON)
                    else:
                        delta[i] += EPSILON * by_delta[i] / by_delta[i].norm()
                        delta[i] *= min(1.0, EPSILON / float(delta[i].norm()))
                with torch.no_grad():
                    for p, v, g in zip(model.parameters(), velocity, gradients, strict=True):
                        v.mul_(0.9).add_(g)
                        p -= RATE * v
    return delta


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("classes", "norm"), [(3, "linf"), (10, "linf"), (100, "linf"), (10, "l2")])
def test_weights_and_perturbation_after_eighteen_updates_are_those_of_the_twin(
    classes: int, norm: str, tmp_path: Path
) -> None:
    (x, y), model = images(classes), network(classes)
    plain, recipe = copy.deepcopy(model), recipe_of(norm)
    run = fit(recipe, tmp_path / "run", model=model, data=(x, y), log="none")
    delta = twin(plain, x, y, recipe)
    saved = read_checkpoint(run.checkpoint("last"))
    assert saved.progress["step"] == 2 * 3 * REPLAYS
    torch.testing.assert_close(saved.tensors["memory.delta"], delta, rtol=1e-9, atol=1e-12)
    assert float(delta.abs().max()) > 0.05
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.usefixtures("double")
def test_micro_batches_carry_the_perturbations_of_their_places(tmp_path: Path) -> None:
    (x, y), plain = images(10), nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 10))
    found = []
    for accumulate in (1, 4):
        recipe = recipe_of(accumulate=accumulate)
        run = fit(recipe, tmp_path / str(accumulate), model=copy.deepcopy(plain), data=(x, y), log="none")
        found.append(read_checkpoint(run.checkpoint("last")).tensors)
    assert float(found[0]["memory.delta"].abs().sum()) > 1
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-9, atol=1e-12, msg=name)


def test_a_recipe_has_as_many_updates_as_at() -> None:
    free, at = (get_recipe(f"cifar10-linf-preact18-{method}") for method in ("free", "at"))
    assert (free.epochs, free.replays, free.steps(50_000)) == (25, 8, 8 * 390)
    assert free.epochs * free.steps(50_000) == at.epochs * at.steps(50_000)
