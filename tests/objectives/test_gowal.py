"""The settings of Gowal et al. 2020 and of the public state of the art: recipes, statistics, what they ask for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rattle.forward import PairedForward
from rattle.objectives.gowal import Gowal
from rattle.objectives.sota import Wang2023
from rattle.recipes.catalog import get_recipe, make_recipe
from rattle.recipes.recipe import SGD, Recipe
from rattle.recipes.schedules import OneCycle, Piecewise
from rattle.runs.load import build_model
from rattle.weights import EMA


@pytest.mark.parametrize(("objective", "passes"), [(Gowal(), 1), (Wang2023(), 2)])
def test_running_statistics_are_those_of_the_adversarial_images_alone(objective: Gowal, passes: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(1, momentum=0.5), nn.Flatten(), nn.Linear(16, 3)).train()
    x, x_adv, plain = torch.rand(8, 1, 4, 4), torch.rand(8, 1, 4, 4), copy.deepcopy(model)
    outputs = PairedForward(model, objective.needs)(x, x_adv)
    for images, logits in ((x, outputs.logits), (x_adv, outputs.logits_adv)):
        assert logits is not None
        torch.testing.assert_close(logits, plain(images))  # each normalised by its own batch
    norm = model[0]
    assert int(norm.num_batches_tracked) == passes
    assert torch.isclose(norm.running_mean, 0.5 * x_adv.mean()).item() == (passes == 1)


GOWAL = {
    "activation": "silu",
    "normalise": True,
    "batch_size": 512,
    "batch_norm_momentum": 0.01,
    "average": EMA(decay=0.995, start=0.025, warmup=True),
    "optimizer": SGD(lr=0.2, momentum=0.9, weight_decay=5e-4, nesterov=True, decay_norms=False),
}
RECIPES = {
    "wrn70-16-dm-gowal": {"epochs": 200, "schedule": Piecewise(drops=(2 / 3,)), "objective": Gowal(inv_lambda=6.0)},
    "wrn28-10-silu-sota": {
        "epochs": 400,
        "schedule": OneCycle(shape="cosine", peak=0.025),
        "objective": Wang2023(inv_lambda=5.0, smoothing=0.1),
    },
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_is_what_the_authors_train(name: str) -> None:
    recipe = get_recipe(f"cifar10-linf-{name}")
    for setting, value in {**GOWAL, **RECIPES[name]}.items():
        assert getattr(recipe, setting) == value, setting
    assert (recipe.attack.loss, recipe.attack.start, recipe.attack.steps) == ("kl", "uniform", 10)
    assert recipe.data.extra_fraction == (0.7 if name.endswith("sota") else None)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


def test_recipes_follow_the_dataset_and_the_network() -> None:
    digits = get_recipe("digits-linf-cnn-gowal")
    assert (digits.batch_size, digits.optimizer.lr) == (128, 0.025)  # few images: small batches, a rate in proportion
    model = build_model(get_recipe("digits-linf-cnn-silu-at"), classes=10, channels=1)
    kinds = {type(module) for module in model.modules()}
    assert nn.SiLU in kinds
    assert nn.ReLU not in kinds
    own = make_recipe("gowal", model="my_net.py:build")  # keeps its activation and normalisation
    assert (own.activation, own.normalise, own.batch_norm_momentum) == ("relu", False, 0.01)
