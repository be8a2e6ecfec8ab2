"""Weights from elsewhere: state dicts as other people's public code saves them, opened without running any code.

Known layouts: TRADES, AWP, MART, robust_overfitting, the authors' Randomized-Adversarial-Training, RobustBench (its
WideResNet, DMWideResNet, ResNet and PreActResNet) and kuangliu/pytorch-cifar; with prefixes, wrappers and input
normalisation as they come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.models.layers import MeanStd
from rattle.models.weight_file import open_weights, unwrap
from rattle.models.wide_resnet import WideResNet

# What stands before the network's own names: nn.DataParallel, torch.compile, nn.Sequential(normalise, network).
PREFIX = re.compile(r"(module|model|net|_orig_mod|basic_net|attacker|backbone|0|1)\.(?=.)")

# Their names, and ours; tried in turn, each on the result of those before it.
RENAMES = [
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"^(fc|linear|classifier|logits|output)\.", "head."),
        (r"^(normali[sz]er?\.|normali[sz]e_layer\.)?(mu|mean|means|new_mean)$", "normalise.mean"),
        (r"^(normali[sz]er?\.|normali[sz]e_layer\.)?(sigma|std|sd|sds|new_std)$", "normalise.std"),
        (r"^features\.", "layers."),  # VGG
        (r"\bconvShortcut\.", "shortcut."),  # WideResNet
        (r"\bshortcut\.0\.", "shortcut."),  # PreAct-ResNet
        (r"^block(\d)\.layer\.", r"block\1."),  # WideResNet
        (r"^bn1\.", "bn."),  # the last one of WideResNet
        (r"^init_conv\.", "conv1."),  # DMWideResNet, from here on
        (r"^batchnorm\.", "bn."),
        (r"^layer\.(\d)\.block\.", lambda m: f"block{int(m[1]) + 1}."),
        (r"\.batchnorm_(\d)\.", lambda m: f".bn{int(m[1]) + 1}."),
        (r"\.conv_(\d)\.", lambda m: f".conv{int(m[1]) + 1}."),
    )
]
# Saved by some, used by none: TRADES' WideResNet makes a sub_block1 that its forward never calls.
UNUSED = re.compile(r"^sub_block1\.|(^|\.)(n_averaged|num_batches_tracked)$")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of loading: how many tensors were taken, which the model kept its own, what of the file was left."""

    taken: int
    kept: tuple[str, ...] = ()  # names of the model that the file did not set: a fresh head, its own normalisation
    ignored: tuple[str, ...] = ()  # names of the file that no forward pass uses
    wrapper: str = ""  # the entry of the file that held the weights, such as "state_dict"; empty when bare


def load_weights(path: str | Path, model: nn.Module, *, fresh_head: bool = False, entry: str | None = None) -> Loaded:
    """Load a .pt, .pth or .safetensors file of weights into the model; on any mismatch the model stays as it was.

    fresh_head keeps the model's head where the file's is for another number of classes. entry names the part of the
    file to take (such as "ema_state_dict") when it holds several.
    """
    wrapper, state = unwrap(open_weights(path), str(path), entry)
    tensors, report = adapt(state, model, fresh_head=fresh_head, where=str(path))
    model.load_state_dict(tensors, strict=False)
    return Loaded(report.taken, report.kept, report.ignored, wrapper)


def file_normalisation(path: str | Path, *, entry: str | None = None) -> MeanStd | None:
    """The (mean, std) by which the file's network normalises its images, to build ours with; None when it has none."""
    _, state = unwrap(open_weights(path), str(path), entry)
    return _statistics(state)


def adapt(
    state: Mapping[str, Tensor], model: nn.Module, *, fresh_head: bool = False, where: str = "the state dict"
) -> tuple[dict[str, Tensor], Loaded]:
    """The state dict under the model's names, and what was kept and ignored; RattleError when they do not match."""
    own = model.state_dict()
    _check_normalisation(state, own, where)
    _check_padding(state, model, where)
    tensors: dict[str, Tensor] = {}
    unexpected, ignored, clashes = [], [], []
    for theirs, tensor in state.items():
        ours = next((name for name in _candidate_names(theirs) if name in own), None)
        if ours is None:
            unused = any(UNUSED.search(name) or name.startswith("normalise.") for name in _candidate_names(theirs))
            (ignored if unused else unexpected).append(theirs)
        elif ours in tensors:
            (ignored if torch.equal(tensors[ours], tensor) else clashes).append(theirs)
        else:
            tensors[ours] = tensor.reshape(own[ours].shape) if _same_statistics(ours, tensor, own) else tensor
    head = _head_names(model) if fresh_head else set()
    for name in [n for n in head if n in tensors and tensors[n].shape != own[n].shape]:
        del tensors[name]
    kept = [n for n in own if n not in tensors and (n in head or _is_optional(n))]
    missing = [n for n in own if n not in tensors and n not in kept]
    shapes = [
        f"{n} {list(t.shape)} instead of {list(own[n].shape)}" for n, t in tensors.items() if t.shape != own[n].shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": shapes, "twice": clashes}
    if any(problems.values()):
        raise RattleError(_mismatch(where, model, problems, own, tensors))
    return tensors, Loaded(len(tensors), tuple(kept), tuple(ignored))


def _candidate_names(name: str) -> Iterator[str]:
    """The name as it is, then without its prefixes, each followed by its form in our layout."""
    while True:
        yield name
        ours = name
        for pattern, replacement in RENAMES:
            renamed = pattern.sub(replacement, ours)
            if renamed != ours:
                yield (ours := renamed)
        shorter = PREFIX.sub("", name, count=1) if PREFIX.match(name) else name
        if shorter == name:
            return
        name = shorter


def _is_optional(name: str) -> bool:
    """Old files have no counter of batches, and most normalise outside the network."""
    return name.endswith("num_batches_tracked") or name in ("normalise.mean", "normalise.std")


def _same_statistics(name: str, tensor: Tensor, own: Mapping[str, Tensor]) -> bool:
    return name in ("normalise.mean", "normalise.std") and tensor.numel() == own[name].numel()


def _head_names(model: nn.Module) -> set[str]:
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    return {f"{linear[-1]}.weight", f"{linear[-1]}.bias"} if linear else set()


def _statistics(state: Mapping[str, Tensor]) -> MeanStd | None:
    found: dict[str, Tensor] = {}
    for theirs, tensor in state.items():
        for name in _candidate_names(theirs):
            if name in ("normalise.mean", "normalise.std"):
                found[name] = tensor
    if len(found) < 2:
        return None
    mean, std = (tuple(round(float(v), 6) for v in found[f"normalise.{n}"].flatten()) for n in ("mean", "std"))
    return None if not any(mean) and set(std) == {1.0} else (mean, std)


def _check_normalisation(state: Mapping[str, Tensor], own: Mapping[str, Tensor], where: str) -> None:
    """Refuse to drop the file's normalisation in silence: the numbers would be wrong."""
    if "normalise.mean" in own or (statistics := _statistics(state)) is None:
        return
    raise RattleError(
        f"the network of {where} normalises its images and this model does not; "
        f"build it with normalise=({statistics[0]}, {statistics[1]})"
    )


def _check_padding(state: Mapping[str, Tensor], model: nn.Module, where: str) -> None:
    """DeepMind's WideResNet has the same weights and pads differently: another function, silently wrong numbers."""
    if not isinstance(model, WideResNet):
        return
    foreign, advice = (
        (r"(^|\.)block1\.layer\.", "the usual WideResNet, which pads evenly; leave out -dm, as in wrn28-10")
        if model.same
        else (r"(^|\.)init_conv\.", "DeepMind's WideResNet, which pads differently; add -dm, as in wrn28-10-dm")
    )
    if any(re.search(foreign, name) for name in state):
        raise RattleError(f"{where} was made by {advice}")


def _mismatch(
    where: str, model: nn.Module, problems: Mapping[str, list[str]], own: Mapping[str, Any], taken: Mapping[str, Any]
) -> str:
    parts = []
    for what, names in problems.items():
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            parts.append(f"{len(names)} {what} ({shown})")
    return (
        f"{where} does not fit {type(model).__name__}: {'; '.join(parts)}; {len(taken)} of {len(own)} names match. "
        "Check the model's name, width, classes and channels."
    )
