"""The settings of Gowal et al. 2020 and of the public state of the art: recipes, statistics, what they ask for."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from rattle.forward import PairedForward
from rattle.objectives.gowal import Gowal
from rattle.objectives.sota import Wang2023
from rattle.recipes.catalog import get_recipe, make_recipe
from rattle.recipes.names import list_recipes
from rattle.recipes.recipe import SGD, Recipe
from rattle.recipes.schedules import OneCycle, Piecewise
from rattle.runs.load import build_model
from rattle.weights import EMA

AVERAGE = EMA(decay=0.995, start=0.025, warmup=True)


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


def test_the_recipe_is_what_the_authors_train() -> None:
    recipe = get_recipe("cifar10-linf-wrn70-16-dm-gowal")
    assert (recipe.model, recipe.activation, recipe.normalise) == ("wrn70-16-dm", "silu", True)
    assert (recipe.batch_size, recipe.epochs, recipe.batch_norm_momentum) == (512, 200, 0.01)
    assert recipe.optimizer == SGD(lr=0.2, momentum=0.9, weight_decay=5e-4, nesterov=True, decay_norms=False)
    assert recipe.average == AVERAGE
    assert recipe.schedule == Piecewise(drops=(2 / 3,))
    assert (recipe.attack.loss, recipe.attack.start, recipe.attack.steps) == ("kl", "uniform", 10)
    assert recipe.objective == Gowal(inv_lambda=6.0)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


def test_the_state_of_the_art_is_spelled_out() -> None:
    recipe = get_recipe("cifar10-linf-wrn28-10-silu-sota")
    assert (recipe.model, recipe.activation, recipe.data.extra_fraction) == ("wrn28-10", "silu", 0.7)
    assert (recipe.batch_size, recipe.epochs, recipe.optimizer.lr) == (512, 400, 0.2)
    assert recipe.schedule == OneCycle(shape="cosine", peak=0.025)
    assert recipe.objective == Wang2023(inv_lambda=5.0, smoothing=0.1)
    assert recipe.average == AVERAGE
    assert replace(get_recipe("cifar10-linf-wrn28-10-sota"), name=recipe.name) == recipe
    assert "cifar10-linf-wrn34-10-sota-2nd" in list_recipes()


def test_recipes_follow_the_dataset_and_the_network() -> None:
    digits = get_recipe("digits-linf-cnn-gowal")
    assert (digits.batch_size, digits.optimizer.lr) == (128, 0.025)  # few images: small batches, a rate in proportion
    model = build_model(get_recipe("digits-linf-cnn-silu-at"), classes=10, channels=1)
    kinds = {type(module) for module in model.modules()}
    assert nn.SiLU in kinds
    assert nn.ReLU not in kinds
    own = make_recipe("gowal", model="my_net.py:build")  # keeps its activation and normalisation
    assert (own.activation, own.normalise, own.batch_norm_momentum) == ("relu", False, 0.01)
