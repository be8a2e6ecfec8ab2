"""The plain references that the benchmarks time take the steps of the library's released recipes."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rattle.forward import PairedForward
from rattle.models import create_model, find_head
from rattle.objectives.base import StepContext
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.training.released import released_step
from rattle.training.step import StepInputs
from reproduction.bench import reference


@pytest.mark.parametrize("method", ["trades-2nd", "trades-awp-2nd"])
def test_a_reference_takes_the_step_of_the_released_recipe(method: str) -> None:
    recipe = get_recipe(f"cifar10-linf-wrn34-10-{method}-released")
    recipe = replace(recipe, attack=replace(recipe.attack, steps=2))
    resnet = recipe.awp is not None  # the AWP script that is timed is the one for ResNet-18
    ours = create_model("preact18", classes=10, width=2).double().train()
    theirs = copy.deepcopy(ours)
    x, y, index = torch.rand(8, 3, 8, 8, dtype=torch.double), torch.arange(8), torch.arange(8)
    given = StepInputs(
        x=x,
        y=y,
        forward=PairedForward(ours, recipe.objective.needs, find_head(ours)),
        attack=recipe.attack,
        noise=recipe.noise,
        objective=recipe.objective,
        awp=recipe.awp,
        context=StepContext(draws=ImageStreams(0, index)),
        shared=torch.Generator().manual_seed(0),
    )
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, weight_decay=5e-4) for m in (ours, theirs)]
    released_step(given, awp_script=recipe.awp is not None, resnet=resnet, weight_decay=5e-4)
    optimizers[0].step()
    start = ImageStreams(0, index).normal(3, 8, 8).double()
    inner = {"epsilon": 8 / 255, "step_size": 2 / 255, "steps": 2, "draws": SimpleNamespace(normal=lambda *_: start)}
    if recipe.awp is None:
        generator = torch.Generator().manual_seed(0)
        reference.released_step(theirs, find_head(theirs), x, y, sigma=1e-4, eta=0.2, generator=generator, **inner)
        optimizers[1].step()
    else:
        reference.released_awp_step(theirs, find_head(theirs), x, y, optimizers[1], gamma=0.005, eta=0.2, **inner)
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-9, atol=1e-11, msg=name)
