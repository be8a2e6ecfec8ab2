"""Weights from elsewhere: state dicts as other people's public code saves them, opened without running any code.

Known layouts: TRADES, AWP, MART, robust_overfitting, the authors' Randomized-Adversarial-Training, RobustBench (its
WideResNet, DMWideResNet, ResNet and PreActResNet) and kuangliu/pytorch-cifar; with their prefixes, wrappers and input
normalisation.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from rattle.errors import RattleError
from rattle.models.layers import MeanStd
from rattle.models.weight_file import open_weights, unwrap
from rattle.models.wide_resnet import WideResNet
from rattle.weights import Tensors

# Their names and ours; applied in order, each to the result of those before it.
RENAMES: list[tuple[str, Any]] = [
    (r"^(fc|linear|classifier|logits|output)\.", "head."),
    (r"^features\.", "layers."),  # VGG
    (r"\bconvShortcut\.", "shortcut."),  # WideResNet
    (r"\bshortcut\.0\.", "shortcut."),  # PreAct-ResNet
    (r"^block(\d)\.layer\.", r"block\1."),  # WideResNet
    (r"^bn1\.", "bn."),  # WideResNet's last BatchNorm
    (r"^init_conv\.", "conv1."),  # this and all below: DMWideResNet
    (r"^batchnorm\.", "bn."),
    (r"^layer\.(\d)\.block\.", lambda m: f"block{int(m[1]) + 1}."),
    (r"\.batchnorm_(\d)\.", lambda m: f".bn{int(m[1]) + 1}."),
    (r"\.conv_(\d)\.", lambda m: f".conv{int(m[1]) + 1}."),
]
# What a network's input normalisation is called, after any prefix.
NORMALISATION_NAMES = {"mean": ("mu", "mean", "means", "new_mean"), "std": ("sigma", "std", "sd", "sds", "new_std")}
# Saved but never used by a forward pass: TRADES' WideResNet creates a sub_block1 that it does not call.
UNUSED = re.compile(r"^sub_block1\.|(^|\.)(n_averaged|num_batches_tracked)$")


def load_weights(path: str | Path, model: nn.Module, *, fresh_head: bool = False) -> list[str]:
    """Load a file of weights into the model; if anything does not match, RattleError and the model is unchanged.

    path: a .pt, .pth or .safetensors file. fresh_head: if the file's head has another number of classes, the model
    keeps its own. Returns the model's names that the file does not set: a new head, its own normalisation.
    """
    state = unwrap(open_weights(path), str(path))
    tensors = adapt(state, model, fresh_head=fresh_head, where=str(path))
    return model.load_state_dict(tensors, strict=False).missing_keys


def file_normalisation(path: str | Path) -> MeanStd:
    """The mean and std by which the network in the file normalises images, for `create_model`; None if it does not."""
    return _statistics(unwrap(open_weights(path), str(path)))


def adapt(state: Tensors, model: nn.Module, *, fresh_head: bool = False, where: str = "the state dict") -> Tensors:
    """The tensors of a state dict under the model's names; RattleError if they do not match.

    state: tensors by the names of the code that saved them. where: its file, for error messages.
    """
    own = model.state_dict()
    statistics = _statistics(state)
    if statistics and not normalises(model):  # without it, the model's accuracy would silently be wrong
        raise RattleError(
            f"the network of {where} normalises its images and this model does not; "
            f"build it with normalise=({statistics[0]}, {statistics[1]})"
        )
    _check_padding(state, model, where)
    head = []  # names that keep the model's values where the file's shapes differ
    if fresh_head:
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        head = [name for name in own if name.rpartition(".")[0] in linear[-1:]]
    ours = _plain_names(own)
    found = {}
    problems = []
    for plain, theirs in _plain_names(state).items():
        name = ours.get(plain) or ours.get(_translated(plain))
        if name and name not in found:
            found[name] = state[theirs]
        elif plain not in NORMALISATION_NAMES and not UNUSED.search(plain):
            problems.append(f"unexpected {theirs}")
    tensors = {}
    for plain, name in ours.items():
        shape, tensor = own[name].shape, found.get(name)
        if tensor is None:
            # Old files do not count batches, and most code normalises outside the network.
            if not (name in head or plain in NORMALISATION_NAMES or name.endswith("num_batches_tracked")):
                problems.append(f"missing {name}")
        elif tensor.shape == shape or (plain in NORMALISATION_NAMES and tensor.numel() == shape.numel()):
            tensors[name] = tensor.reshape(shape)  # statistics are saved as [C] or [1, C, 1, 1]
        elif name not in head:
            problems.append(f"{name} {list(tensor.shape)} instead of {list(shape)}")
    if problems:
        raise RattleError(
            f"{where} does not fit {type(model).__name__}: {len(problems)} of its names do not match "
            f"({', '.join(problems[:5])}). Check the model's name, width, classes and channels."
        )
    return tensors


def normalises(model: nn.Module) -> bool:
    """Whether the model holds a mean and a std for its images, under one of the names that are used for them."""
    return NORMALISATION_NAMES.keys() <= _plain_names(model.state_dict()).keys()


def _plain_names(names: Iterable[str]) -> dict[str, str]:
    """Each name by a plain one: without what all weights begin with, such as "net.1."; "mean" and "std" of the images.

    Those two have many names; where more than one could be meant, none is.
    """
    plain = {}
    for kind, words in NORMALISATION_NAMES.items():
        found = [name for name in names if name.rpartition(".")[2] in words]
        if len(found) == 1:
            plain[kind] = found[0]
    weights = [name for name in names if name not in plain.values()]
    parts = [name.split(".")[:-1] for name in weights if not UNUSED.search(name)]
    prefix = "".join(f"{part}." for part in os.path.commonprefix(parts))  # noqa: RUF071 of lists, part by part
    return plain | {name.removeprefix(prefix): name for name in weights}


def _translated(name: str) -> str:
    """Our name for a tensor of other code."""
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _statistics(state: Tensors) -> MeanStd:
    """The mean and std in a state dict; None if there are none, or if they change nothing."""
    names = _plain_names(state)
    if not NORMALISATION_NAMES.keys() <= names.keys():
        return None
    mean, std = (
        tuple(round(float(value), 6) for value in state[names[kind]].flatten()) for kind in NORMALISATION_NAMES
    )
    return None if not any(mean) and set(std) == {1.0} else (mean, std)


def _check_padding(state: Tensors, model: nn.Module, where: str) -> None:
    """Distinguish the two WideResNets by their names: the weights have equal shapes, but the padding differs."""
    if not isinstance(model, WideResNet):
        return
    if model.same:
        wrong = r"(^|\.)block1\.layer\."
        advice = "the usual WideResNet, which pads evenly; leave out -dm, as in wrn28-10"
    else:
        wrong = r"(^|\.)init_conv\."
        advice = "DeepMind's WideResNet, which pads differently; add -dm, as in wrn28-10-dm"
    if any(re.search(wrong, name) for name in state):
        raise RattleError(f"{where} was made by {advice}")
