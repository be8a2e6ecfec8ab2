"""Optimizers: fused ones take the plain steps, layers and norms get their own treatment, and a run resumes exactly."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.catalog import get_recipe, make_recipe
from rattle.recipes.recipe import SGD, AdamW, Recipe, ValAttack
from rattle.recipes.schedules import Cosine
from rattle.runs.checkpoint import read
from rattle.training.loop import fit
from rattle.training.optimizers import layer_numbers, make_optimizer
from support.training import Interrupting, Stop, content, recipe_of, tiny


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


class ViT(nn.Module):
    """The structure of everybody's vision transformer."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, 4, 8))
        self.patch_embed = nn.Conv2d(1, 8, 4, 4)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def names(model: nn.Module) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, layer in layer_numbers(model).items():
        found.setdefault(layer, []).append(name.removesuffix(".weight").removesuffix(".bias"))
    return {layer: list(dict.fromkeys(members)) for layer, members in found.items()}


@pytest.mark.parametrize("wrap", [lambda net: net, lambda net: nn.Sequential(nn.Identity(), net)])
def test_layers_of_a_transformer_are_its_blocks_between_the_embedding_and_the_head(wrap) -> None:
    found = {i: [n.removeprefix("1.") for n in members] for i, members in names(wrap(ViT(2))).items()}
    blocks = {1: ["blocks.0.0", "blocks.0.1"], 2: ["blocks.1.0", "blocks.1.1"]}
    assert found == {0: ["pos_embed", "patch_embed"], **blocks, 3: ["norm", "head"]}


def test_layers_of_a_resnet_are_its_blocks_and_those_of_a_plain_network_its_weights() -> None:
    numbers = layer_numbers(create_model("preact18", classes=10, width=8))
    assert numbers["conv1.weight"] == 0
    assert numbers["layer1.0.conv1.weight"] == numbers["layer1.0.bn2.weight"] == 1
    assert numbers["layer4.1.conv2.weight"] == 8
    assert numbers["bn.weight"] == numbers["head.weight"] == max(numbers.values()) == 9
    plain = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 2)
    )
    assert names(plain) == {0: ["0", "1"], 1: ["3"], 2: ["5"]}


def test_the_rate_falls_from_layer_to_layer_and_norms_and_biases_do_not_decay() -> None:
    model = ViT(2)
    recipe = Recipe(optimizer=AdamW(lr=0.1, weight_decay=0.3, layer_decay=0.5), model="vit")
    treated = {p: group for group in make_optimizer(recipe, model).param_groups for p in group["params"]}
    assert len(treated) == len(list(model.parameters()))
    for name, p in model.named_parameters():
        assert treated[p]["lr_scale"] == 0.5 ** (3 - layer_numbers(model)[name])
        assert treated[p]["weight_decay"] == (0.3 if p.ndim > 1 else 0)
    (only,) = make_optimizer(Recipe(), model).param_groups
    assert (only["lr_scale"], only["weight_decay"]) == (1.0, 5e-4)
    with pytest.raises(RattleError, match="layer-decay does nothing: the network has only one layer"):
        make_optimizer(replace(recipe, optimizer=SGD(layer_decay=0.5)), nn.Linear(2, 2))


def test_a_step_of_a_layer_is_as_long_as_its_rate_says() -> None:
    torch.manual_seed(0)
    model, plain = ViT(), ViT()
    plain.load_state_dict(model.state_dict())
    settings = AdamW(lr=0.01, weight_decay=0.0)
    numbers, before = layer_numbers(model), {n: p.detach().clone() for n, p in model.named_parameters()}
    for net, optimizer in ((model, replace(settings, layer_decay=0.5)), (plain, settings)):
        made = make_optimizer(Recipe(optimizer=optimizer), net)
        F.cross_entropy(net(torch.ones(6, 1, 8, 8)), torch.arange(6)).backward()
        for group in made.param_groups:
            group["lr"] = 0.01 * group["lr_scale"]
        made.step()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            p - before[name], (q - before[name]) * 0.5 ** (4 - numbers[name]), atol=1e-6, rtol=1e-3
        )


ADAMW = {"optimizer": AdamW(lr=0.01, layer_decay=0.7), "schedule": Cosine(warmup=0.4)}
PLAIN = {"optimizer": SGD(lr=0.05, layer_decay=0.8, decay_norms=False)}


@pytest.mark.parametrize("settings", [ADAMW, PLAIN], ids=["AdamW", "SGD"])
def test_a_resumed_run_with_layer_decay_is_the_run_that_was_never_stopped(settings: dict, tmp_path: Path) -> None:
    recipe = tiny("at", **settings, save_minutes=0.0)  # saves after every step
    recipe = replace(recipe, attack=PGD(steps=1), val_attack=ValAttack(steps=1))
    whole = fit(recipe, tmp_path / "whole", log="none")
    with pytest.raises(Stop):
        fit(recipe, tmp_path / "run", console=Interrupting(steps=5), log="none")
    assert content(fit(recipe, tmp_path / "run", resume=True, log="none")) == content(whole)
    buffers = read(whole.checkpoint("last")).part("optimizer")
    counts = [value for name, value in buffers.items() if name.endswith(".step")]
    assert {(value.ndim, float(value)) for value in counts} == ({(0, 6.0)} if settings is ADAMW else set())


def test_the_command_line_chooses_optimizer_and_warm_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--width", "4", "--epochs", "1", "--data.train-size", "64", "--batch-size", "32", "--attack.steps", "1"]
    words = ["--optimizer.kind", "AdamW", "--optimizer.betas", "0.9", "0.95", "--optimizer.layer-decay", "3/4"]
    words += ["--schedule.kind", "Cosine", "--schedule.warmup", "1/10", "--log", "none"]
    assert main(["train", "digits-linf-cnn-at", *sizes, *words, "--out", str(tmp_path / "run")]) == 0
    recipe = Recipe.from_yaml((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe.optimizer == AdamW(betas=(0.9, 0.95), layer_decay=0.75)
    assert recipe.schedule == Cosine(warmup=0.1)
    assert main(["train", "digits-linf-cnn-at", "--optimizer.kind", "Adam", "--out", str(tmp_path / "b")]) == 2
    assert "must be one of SGD, AdamW, got 'Adam'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_vit_of_timm_trains_with_adamw_and_layer_decay(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, num_classes=3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = make_recipe("trades-2nd", epochs=1, batch_size=8, optimizer=AdamW(layer_decay=0.75))
    x, y = torch.rand(20, 3, 32, 32), torch.arange(20) % 3
    run = fit(replace(recipe, schedule=Cosine(warmup=0.5)), tmp_path, model=model, data=(x, y), log="none")
    assert read(run.checkpoint("last")).progress["step"] == 2
    assert not torch.equal(before["head.weight"], model.state_dict()["head.weight"])
    assert re.match("python:timm.*VisionTransformer", recipe_of(run).model)
