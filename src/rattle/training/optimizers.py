"""The recipe's optimizer over a model's parameters: in groups where their weight decay or learning rate differ."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.recipes.recipe import AdamW, Recipe

WRAPPER = 0.9  # an item of a container that holds this share of all weights is no block but the network itself


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The recipe's optimizer; fused, one pass over each tensor instead of four.

    Each group has the factor on its learning rate as `lr_scale`.
    """
    settings, groups = recipe.optimizer, parameter_groups(recipe, model)
    fused = all(p.is_floating_point() for p in model.parameters())
    shared: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": fused}
    if isinstance(settings, AdamW):
        return torch.optim.AdamW(groups, betas=settings.betas, **shared)
    return torch.optim.SGD(groups, momentum=settings.momentum, nesterov=settings.nesterov, **shared)


def parameter_groups(recipe: Recipe, model: nn.Module) -> list[dict[str, Any]]:
    """Parameters that are treated alike together; all of them in one group unless the recipe says otherwise."""
    settings = recipe.optimizer
    layers = layer_numbers(model) if settings.layer_decay is not None else {}
    last = max(layers.values(), default=0)
    if settings.layer_decay is not None and last == 0:
        raise RattleError("optimizer.layer-decay does nothing: the network has only one layer")

    def treatment(named: tuple[str, Tensor]) -> tuple[int, bool]:
        name, p = named
        return layers.get(name, 0), settings.decay_norms or p.ndim > 1

    groups = []
    for (layer, decays), members in groupby(sorted(model.named_parameters(), key=treatment), key=treatment):
        scale = 1.0 if settings.layer_decay is None else settings.layer_decay ** (last - layer)
        group = {"params": [p for _, p in members], "lr_scale": scale}
        groups.append(group if decays else {**group, "weight_decay": 0.0})
    return groups


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """Which layer each parameter belongs to, from 0 at the images to the highest number at the logits.

    Blocks are the items of nn.Sequential and nn.ModuleList that have parts of their own (a transformer's blocks, a
    ResNet's blocks, a ConvNeXt's stages), each a layer. What is registered before the first block is layer 0, between
    blocks it belongs to the one before, and after the last it is a layer with the head. A network without blocks has a
    layer for each of its matrices and convolutions, with the normalisation that follows.

    >>> layer_numbers(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False)))
    {'0.weight': 0, '0.bias': 0, '1.weight': 0, '1.bias': 0, '2.weight': 1}
    """
    names, starts = list(model.named_parameters()), list(blocks(model, size(model)))
    found, number = {}, 0
    if not starts:
        owners = list(dict.fromkeys(name.rpartition(".")[0] for name, p in names if p.ndim > 1))
        for name, _ in names:
            owner = name.rpartition(".")[0]
            number = owners.index(owner) if owner in owners else number
            found[name] = number
        return found
    for name, _ in names:
        inside = next((i for i, start in enumerate(starts, 1) if name.startswith(f"{start}.")), None)
        number = inside or number
        found[name] = number if inside or number < len(starts) else len(starts) + 1
    return found


def blocks(module: nn.Module, total: int, prefix: str = "") -> Iterator[str]:
    """The names of a network's blocks, see `layer_numbers`, in the order in which they are registered."""
    for name, child in module.named_children():
        item = isinstance(module, nn.Sequential | nn.ModuleList) and any(size(part) for part in child.children())
        if item and size(child) < WRAPPER * total:
            yield f"{prefix}{name}"
        else:
            yield from blocks(child, total, f"{prefix}{name}.")


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
