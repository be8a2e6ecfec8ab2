"""The recipe's optimizer over a model's parameters: in groups where their weight decay or learning rate differ."""

import importlib
from typing import Any

import torch
from torch import nn

from rattle.errors import RattleError
from rattle.recipes.recipe import AdamW, Recipe


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
    if settings.layer_decay is not None:
        return timm_groups(model, settings.layer_decay, settings.weight_decay, settings.decay_norms)
    matrices, vectors = [], []
    for p in model.parameters():
        (matrices if settings.decay_norms or p.ndim > 1 else vectors).append(p)
    groups: list[dict[str, Any]] = [{"params": matrices, "lr_scale": 1.0}]
    if vectors:
        groups.append({"params": vectors, "lr_scale": 1.0, "weight_decay": 0.0})
    return groups


def timm_groups(model: nn.Module, layer_decay: float, weight_decay: float, decay_norms: bool) -> list[dict[str, Any]]:
    """The layers of a timm network, whose rate falls towards the images by the factor `layer_decay` a layer."""
    for module in model.modules():  # a network behind a normalisation too
        if hasattr(module, "group_matcher") and len(list(module.parameters())) == len(list(model.parameters())):
            groups = importlib.import_module("timm.optim").param_groups_layer_decay(
                module, weight_decay, layer_decay=layer_decay
            )
            if decay_norms:
                for group in groups:
                    group["weight_decay"] = weight_decay
            return groups
    raise RattleError("optimizer.layer-decay needs a network of timm, which names its layers: leave it out")
