"""Trained models from runs, checkpoints, published folders, the hub (`hf:OWNER/NAME`) and the zoo (`zoo:NAME`)."""

import importlib
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from rattle.errors import RattleError, first_line
from rattle.models.layers import MeanStd
from rattle.models.registry import create_model
from rattle.models.user import refuse_code
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import Checkpoint, read_checkpoint
from rattle.runs.distributed import choose_device
from rattle.runs.io import Plain
from rattle.runs.paths import CONFIG, WEIGHTS_FILE, Run, is_published, slugify
from rattle.runs.source import check_version
from rattle.settings import check_type
from rattle.weights import Tensors


def find_weights(path: Path | str) -> tuple[Path, Plain | None]:
    """The file that a path means, see `resolve_checkpoint`, and its config if it is a published model."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise RattleError(f"a run or checkpoint is given by its path, got {path!r}")
    if is_published(path):
        source = importlib.import_module("rattle.runs.hub" if str(path).startswith("hf:") else "rattle.runs.zoo")
        return source.fetch(str(path))
    file = Path(path)
    if file.is_dir():
        run = Run(file)
        for choice in (run.checkpoint("best"), run.checkpoint("last"), file / WEIGHTS_FILE):
            if choice.is_file():
                file = choice
                break
        else:
            raise RattleError(f"{path} holds no checkpoint; train there with `rattle train RECIPE --out {path}`")
    if not file.exists():
        raise RattleError(f"there is no run or checkpoint {path}")
    config = file.with_name(CONFIG)
    if file.name != WEIGHTS_FILE or not config.is_file():
        return file, None
    from rattle.runs.published import read_config

    return file, read_config(config, str(path))


def resolve_checkpoint(path: Path | str) -> Path:
    """The file that a path means: itself; of a run folder the best checkpoint, else the last; of a published folder,
    `hf:OWNER/NAME` (downloaded if it is not in the cache) or `zoo:NAME` the weights."""
    return find_weights(path)[0]


def run_of(checkpoint: Path) -> Run | None:
    """The run that a checkpoint file belongs to, if any."""
    run = Run(checkpoint.parent.parent)
    return run if run.checkpoints == checkpoint.parent and run.exists() else None


def open_checkpoint(path: Path | str, *, trust_code: bool = False) -> Checkpoint:
    """Read the checkpoint or published model that a path means, see `resolve_checkpoint`; trust_code: as for `load`."""
    file, config = find_weights(path)
    if config is None:
        return replace(read_checkpoint(file), trust_code=trust_code)
    from rattle.runs.published import read_published

    saved = read_published(file, config, str(path))
    try:  # weights of another network are refused before that takes any memory; timm's are built
        with torch.device("cpu" if saved.recipe.model.startswith("timm:") else "meta"):
            refuse_other_weights(fresh_model(saved), saved.part("model"))
    except RattleError as reason:
        raise RattleError(f"{path}: {first_line(reason)}") from reason
    # Results and exports of what lies in the package or in a cache go to a folder in the working one.
    return replace(saved, path=Path(slugify(str(path))) / WEIGHTS_FILE) if is_published(path) else saved


def load(
    path: Path | str,
    *,
    averaged: bool = True,
    model: nn.Module | None = None,
    device: torch.device | str | None = None,
    trust_code: bool = False,
) -> nn.Module:
    """The trained model of a checkpoint, or of a run folder's best one, in evaluation mode, for images in [0, 1].

    path: a checkpoint, a run folder, a folder that `rattle push` wrote, `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION` on
    the Hugging Face hub, or `zoo:NAME`, one of `rattle.list_zoo()`. Nothing that is downloaded is executed. averaged:
    take the averaged weights if the run has them; False takes the raw ones. model: a module to load the weights into,
    for a run whose network was given to `fit` in Python; it is changed in place and returned. device: where to put it,
    "auto" for a GPU if there is one; None leaves it where it is. trust_code: run the
    FILE.py:FUNCTION or package.module:FUNCTION that a run or checkpoint names as its model; refused without it.

    >>> load("zoo:digits-linf-cnn-trades-2nd")(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    check_type("averaged", averaged, bool)
    saved = open_checkpoint(path, trust_code=trust_code)
    return load_model(saved, averaged=averaged, model=model, device=device)


def build_model(
    recipe: Recipe,
    *,
    classes: int,
    channels: int,
    statistics: MeanStd = None,
    pretrained: bool = True,
) -> nn.Module:
    """The recipe's network with fresh weights, drawn from torch's global generator.

    classes, channels: of the data; statistics: mean and std of each channel, None for no normalisation;
    pretrained: as for `create_model`.
    """
    if recipe.model.partition(":")[0] == "python":  # the name that `fit` gives to a module handed to it
        raise RattleError(
            f"the network ({recipe.model}) was given in Python and is not stored: give it again, rattle.load(RUN, "
            "model=module) to measure it with rattle.evaluate, rattle.fit(..., model=module, data=...) to train it"
        )
    try:
        return create_model(
            recipe.model,
            classes=classes,
            channels=channels,
            width=recipe.width,
            activation=recipe.activation,
            normalise=statistics,
            pretrained=pretrained,
        )
    except RuntimeError as reason:  # more weights than memory
        raise RattleError(f"the network {recipe.model} cannot be built: {first_line(reason)}") from reason


def fresh_model(saved: Checkpoint) -> nn.Module:
    """The network of a checkpoint before its weights are loaded; code that it names runs only where it is trusted."""
    if not saved.trust_code:
        refuse_code([saved.recipe.model], str(saved.path))
    channels = saved.shape[0]
    unit = ([0.0] * channels, [1.0] * channels)  # replaced by the true statistics, which are buffers of the model
    statistics = unit if saved.recipe.normalise else None
    sizes = {"classes": len(saved.classes), "channels": channels}
    return build_model(saved.recipe, **sizes, statistics=statistics, pretrained=False)


def load_model(
    saved: Checkpoint,
    *,
    averaged: bool = True,
    model: nn.Module | None = None,
    device: torch.device | str | None = None,
) -> nn.Module:
    """The network of a checkpoint with its weights, in evaluation mode; averaged, model, device: as for `load`."""
    found = None if device is None else choose_device(device)
    if model is None:
        check_version(run_of(saved.path), saved.recipe)
        model = fresh_model(saved)
    count = saved.tensors.get("average.n_averaged", torch.zeros(()))
    began = averaged and count.numel() == 1 and not count.is_complex() and bool(count > 0)
    fill(model, saved.part("average.module" if began else "model"), saved.path)
    return model.eval() if found is None else model.eval().to(found)


def fill(model: nn.Module, weights: Tensors, path: Path) -> None:
    """Put the weights of a checkpoint file into a model; one that they do not fit is refused and stays as it was."""
    try:
        refuse_other_weights(model, weights)
    except RattleError as reason:
        raise RattleError(f"{path} holds another network: {reason}") from reason
    model.load_state_dict(weights)


def refuse_other_weights(model: nn.Module, weights: Tensors) -> None:
    """Refuse weights whose names or shapes are not the network's."""
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in weights.items()}
    for name in [*own, *given]:
        if own.get(name) != given.get(name):
            there, here = given.get(name, "missing"), own.get(name, "missing")
            raise RattleError(
                f"the weights are not those of the network: {name} is {there} there, {here} in the network"
            )
