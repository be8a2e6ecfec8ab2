"""Optimizers: fused ones take the plain steps, layers and norms get their own treatment, and a run resumes exactly."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.catalog import get_recipe, make_recipe
from rattle.recipes.recipe import SGD, AdamW, Recipe, ValAttack
from rattle.recipes.schedules import Cosine
from rattle.runs.checkpoint import read
from rattle.training.loop import fit
from rattle.training.state import make_optimizer
from support.training import Interrupting, Stop, content, tiny


def test_nesterov_looks_ahead_along_the_momentum() -> None:
    weight = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(weight.weight)
    settings = SGD(lr=0.1, momentum=0.5, weight_decay=0.0, nesterov=True)
    optimizer = make_optimizer(replace(get_recipe("digits-linf-cnn-trades"), optimizer=settings), weight)
    for _ in range(2):  # the gradient is 1: v = 1, then 1.5; a step is 1 + v / 2
        optimizer.zero_grad()
        weight.weight.sum().backward()
        optimizer.step()
    assert float(weight.weight.detach()) == pytest.approx(-0.1 * (1.5 + 1.75))


def test_the_fused_optimizer_takes_the_plain_step() -> None:
    recipe = get_recipe("digits-linf-cnn-trades")
    weights = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = create_model("cnn", classes=3, width=4)
        optimizer = make_optimizer(recipe, model)
        assert optimizer.defaults["fused"]
        if not fused:
            o = recipe.optimizer
            optimizer = torch.optim.SGD(
                model.parameters(), lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay, foreach=False
            )
        for seed in range(3):
            torch.manual_seed(seed)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.rand(8, 3, 8, 8)), torch.arange(8) % 3).backward()
            optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*weights, atol=1e-6)


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


ADAMW = {"optimizer": AdamW(lr=0.01), "schedule": Cosine(warmup=0.4)}
PLAIN = {"optimizer": SGD(lr=0.05, decay_norms=False)}


@pytest.mark.parametrize("settings", [ADAMW, PLAIN], ids=["AdamW", "SGD"])
def test_a_resumed_run_with_groups_is_the_run_that_was_never_stopped(settings: dict, tmp_path: Path) -> None:
    recipe = tiny("at", **settings, save_minutes=0.0)  # saves after every step
    recipe = replace(recipe, attack=PGD(steps=1), val_attack=ValAttack(steps=1))
    whole = fit(recipe, tmp_path / "whole", log="none")
    with pytest.raises(Stop):
        fit(recipe, tmp_path / "run", console=Interrupting(steps=5), log="none")
    assert content(fit(recipe, tmp_path / "run", resume=True, log="none")) == content(whole)
    buffers = read(whole.checkpoint("last")).part("optimizer")
    counts = [value for name, value in buffers.items() if name.endswith(".step")]
    assert {(value.ndim, float(value)) for value in counts} == ({(0, 6.0)} if settings is ADAMW else set())


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
    assert read(run.checkpoint("last")).progress["step"] == 2
    assert not torch.equal(before["head.weight"], model.state_dict()["head.weight"])
