"""Optimizers: fused ones take the plain steps, layers and norms get their own treatment, and a run resumes exactly."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.catalog import make_recipe
from rattle.recipes.recipe import SGD, AdamW, Recipe
from rattle.recipes.schedules import Cosine
from rattle.runs.checkpoint import read_checkpoint
from rattle.training.loop import fit
from rattle.training.state import make_optimizer
from support.training import tiny


def test_the_optimizer_has_the_settings_of_the_recipe_and_is_fused() -> None:
    recipe = Recipe(optimizer=SGD(lr=0.1, momentum=0.5, weight_decay=0.2, nesterov=True))
    found = make_optimizer(recipe, nn.Linear(1, 1)).defaults
    wanted = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.2, "nesterov": True, "fused": True}
    assert wanted.items() <= found.items()


def test_norms_and_biases_decay_only_where_the_recipe_says_so() -> None:
    model = create_model("cnn", classes=3, width=4)
    for decay_norms in (True, False):
        recipe = Recipe(optimizer=AdamW(weight_decay=0.3, decay_norms=decay_norms))
        treated = {p: group for group in make_optimizer(recipe, model).param_groups for p in group["params"]}
        for p in model.parameters():
            assert treated[p]["lr_scale"] == 1
            assert treated[p]["weight_decay"] == (0.3 if decay_norms or p.ndim > 1 else 0)


def test_layer_decay_is_for_networks_of_timm(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="layer-decay needs a network of timm"):
        fit(tiny("at", optimizer=AdamW(layer_decay=0.5)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_vit_of_timm_trains_with_adamw_and_layer_decay(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, num_classes=3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = make_recipe("trades-2nd", epochs=1, batch_size=8, optimizer=AdamW(layer_decay=0.75))
    groups = make_optimizer(recipe, nn.Sequential(nn.Identity(), model)).param_groups
    scales = {p: g["lr_scale"] for g in groups for p in g["params"]}
    assert len(scales) == len(list(model.parameters()))
    assert scales[model.head.weight] == 1 > scales[model.blocks[2].mlp.fc1.weight] > scales[model.pos_embed]
    x, y = torch.rand(20, 3, 32, 32), torch.arange(20) % 3
    run = fit(replace(recipe, schedule=Cosine(warmup=0.5)), tmp_path, model=model, data=(x, y), log="none")
    assert read_checkpoint(run.checkpoint("last")).progress["step"] == 2
    assert not torch.equal(before["head.weight"], model.state_dict()["head.weight"])
