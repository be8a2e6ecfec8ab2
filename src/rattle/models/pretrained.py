"""Weights from elsewhere: state dicts as other people's public code saves them, opened without running any code.

Known layouts: TRADES, AWP, MART, robust_overfitting, the authors' Randomized-Adversarial-Training, RobustBench (its
WideResNet, DMWideResNet, ResNet and PreActResNet) and kuangliu/pytorch-cifar; with their prefixes, wrappers and input
normalisation.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.models.layers import MeanStd
from rattle.models.weight_file import open_weights, unwrap
from rattle.models.wide_resnet import WideResNet

# Prefixes of a network's names: nn.DataParallel, torch.compile, nn.Sequential(normalise, network), ...
PREFIX = re.compile(r"(module|model|net|_orig_mod|basic_net|attacker|backbone|0|1)\.(?=.)")

# Their names and ours; applied in order, each to the result of those before it.
RENAMES: list[tuple[str, Any]] = [
    (r"^(fc|linear|classifier|logits|output)\.", "head."),
    (r"^(norm\.|normali[sz](er?|ation)(_layer)?\.)?(mu|mean|means|new_mean)$", "normalise.mean"),
    (r"^(norm\.|normali[sz](er?|ation)(_layer)?\.)?(sigma|std|sd|sds|new_std)$", "normalise.std"),
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
# Saved but never used by a forward pass: TRADES' WideResNet creates a sub_block1 that it does not call.
UNUSED = re.compile(r"^sub_block1\.|(^|\.)(n_averaged|num_batches_tracked)$")
STATISTICS = ("normalise.mean", "normalise.std")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What `load_weights` did."""

    loaded: int  # number of tensors taken from the file
    missing: tuple[str, ...] = ()  # the model's names that the file does not set: a new head, its own normalisation
    ignored: tuple[str, ...] = ()  # the file's names that no forward pass uses
    wrapper: str = ""  # the entry of the file that holds the weights, such as "state_dict"; empty if it has none


def load_weights(
    path: str | Path, model: nn.Module, *, fresh_head: bool = False, entry: str | None = None
) -> LoadReport:
    """Load a file of weights into the model; if anything does not match, RattleError and the model is unchanged.

    path: a .pt, .pth or .safetensors file. fresh_head: if the file's head has another number of classes, the model
    keeps its own. entry: the entry of the file to load, such as "ema_state_dict", when it has several.
    """
    wrapper, state = unwrap(open_weights(path), str(path), entry)
    tensors, report = adapt(state, model, fresh_head=fresh_head, where=str(path))
    model.load_state_dict(tensors, strict=False)
    return replace(report, wrapper=wrapper)


def file_normalisation(path: str | Path) -> MeanStd:
    """The mean and std by which the network in the file normalises images, for `create_model`; None if it does not."""
    return _statistics(unwrap(open_weights(path), str(path))[1])


def adapt(
    state: Mapping[str, Tensor], model: nn.Module, *, fresh_head: bool = False, where: str = "the state dict"
) -> tuple[dict[str, Tensor], LoadReport]:
    """The tensors of a state dict under the model's names, and a report; RattleError if they do not match.

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
    head: set[str] = set()  # names that keep the model's values where the file's shapes differ
    if fresh_head:
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        head = {name for name in own if name.rpartition(".")[0] in linear[-1:]}
    as_they_are, without_prefixes = _match(state, own), _match(state, own, _prefix(state), _prefix(own))
    names = without_prefixes if len(without_prefixes) > len(as_they_are) else as_they_are

    tensors: dict[str, Tensor] = {}
    ignored: list[str] = []
    problems: dict[str, list[str]] = {"missing": [], "unexpected": [], "of another shape": [], "twice": []}
    for theirs, tensor in state.items():
        ours = names.get(theirs)
        if ours is None:
            (ignored if _is_unused(theirs) else problems["unexpected"]).append(theirs)
        elif ours in tensors:
            (ignored if torch.equal(tensors[ours], tensor) else problems["twice"]).append(theirs)
        else:
            shape = own[ours].shape
            if _statistic(ours) and tensor.numel() == own[ours].numel():
                tensor = tensor.reshape(shape)  # saved as [C] or [1, C, 1, 1]
            if tensor.shape != shape:
                if ours in head:
                    continue
                problems["of another shape"].append(f"{ours} {list(tensor.shape)} instead of {list(shape)}")
            tensors[ours] = tensor
    missing: list[str] = []
    for name in [name for name in own if name not in tensors]:
        # Old files do not count batches, and most code normalises outside the network.
        optional = name in head or _statistic(name) or name.endswith("num_batches_tracked")
        (missing if optional else problems["missing"]).append(name)
    if any(problems.values()):
        found = "; ".join(f"{len(names)} {problem} ({_few(names)})" for problem, names in problems.items() if names)
        raise RattleError(
            f"{where} does not fit {type(model).__name__}: {found}; {len(tensors)} of {len(own)} names "
            "match. Check the model's name, width, classes and channels."
        )
    return tensors, LoadReport(len(tensors), tuple(missing), tuple(ignored))


def normalises(model: nn.Module) -> bool:
    """Whether the model holds a mean and a std for its images, under one of the names that are used for them."""
    return set(STATISTICS) <= {_statistic(name) for name in model.state_dict()}


def _match(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor], file_prefix: str = "", model_prefix: str = ""
) -> dict[str, str]:
    """The model's name for each of the file's names that has one; a prefix may be left out on either side."""
    plain = {_statistic(name) or name.removeprefix(model_prefix): name for name in own}
    found = {}
    for theirs in state:
        for candidate in _candidate_names(theirs.removeprefix(file_prefix)):
            if candidate in plain:
                found[theirs] = plain[candidate]
                break
    return found


def _prefix(names: Iterable[str]) -> str:
    """What all names of weights begin with, in whole parts: "net.1." of net.1.conv.weight and net.1.fc.weight."""
    parts = [name.split(".")[:-1] for name in names if not _statistic(name) and not UNUSED.search(name)]
    prefix = ""
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        prefix += f"{column[0]}."
    return prefix


def _statistic(name: str) -> str:
    """Which of STATISTICS a name means; empty if it means none."""
    return next((ours for ours in _candidate_names(name) if ours in STATISTICS), "")


def _is_unused(name: str) -> bool:
    return any(UNUSED.search(each) or each.startswith("normalise.") for each in _candidate_names(name))


def _few(names: list[str]) -> str:
    """The first five names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _candidate_names(name: str) -> Iterator[str]:
    """The name, then with each prefix removed in turn; after each of them, its translations to our names."""
    while True:
        yield name
        ours = name
        for pattern, replacement in RENAMES:
            renamed = re.sub(pattern, replacement, ours)
            if renamed != ours:
                yield (ours := renamed)
        if not PREFIX.match(name):
            return
        name = PREFIX.sub("", name, count=1)


def _statistics(state: Mapping[str, Tensor]) -> MeanStd:
    """The mean and std in a state dict; None if there are none, or if they change nothing."""
    found = {ours: state[theirs] for theirs in state for ours in _candidate_names(theirs) if ours in STATISTICS}
    if len(found) < 2:
        return None
    mean, std = (tuple(round(float(v), 6) for v in found[name].flatten()) for name in STATISTICS)
    return None if not any(mean) and set(std) == {1.0} else (mean, std)


def _check_padding(state: Mapping[str, Tensor], model: nn.Module, where: str) -> None:
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
