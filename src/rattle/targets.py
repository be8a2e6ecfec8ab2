"""What can be evaluated: a run, a checkpoint, or any model with its weights and data. One shape for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rattle.data import Data, Images, to_float
from rattle.errors import RattleError
from rattle.models import build, check_width, load_weights
from rattle.models.foreign import file_normalisation
from rattle.runs import model_of, open_checkpoint, run_of
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model in evaluation mode, the images it is judged on, and where verdicts go."""

    name: str
    model: nn.Module
    test: Images
    classes: tuple[str, ...]
    threat: Threat  # what it was trained against, or the usual 8/255
    about: dict[str, Any]  # what a result file says of it
    results: Path

    def images(self, n: int | None) -> Images:
        """The first n test images, or all of them."""
        if n is not None and n < 1:
            raise RattleError(f"--n must be >= 1, got {n}")
        return self.test if n is None else self.test[torch.arange(min(n, len(self.test)))]


def saved_target(path: str, *, data: str | None = None, averaged: bool = True) -> Target:
    """A run folder or a checkpoint; on its own data unless others are named."""
    saved = open_checkpoint(path)
    recipe, run = saved.recipe, run_of(saved.path)
    source = Data(name=data, root=recipe.data.root).source() if data else recipe.data.load()
    return Target(
        name=recipe.name,
        model=model_of(saved, averaged=averaged),
        test=source.test,
        classes=saved.classes,
        threat=recipe.attack.threat,
        about={"checkpoint": str(saved.path), "recipe": recipe.name, "data": data or recipe.data.name},
        results=run.results if run else saved.path.parent / "results",
    )


def foreign_target(model: str, weights: str | None, data: str, *, root: str | None, width: int | None) -> Target:
    """A network by name or from a user's file, with weights as other code saves them."""
    source = Data(name=data, root=root).source()
    if len(source.test) == 0:
        raise RattleError(f"{data} has no test images to evaluate on")
    statistics = file_normalisation(weights) if weights else None
    network = build(model, classes=len(source.classes), channels=source.channels, width=width, normalise=statistics)
    if weights:
        load_weights(weights, network)
    elif ":" not in model:
        raise RattleError(f"--model {model} has no trained weights of its own: give them with --weights")
    network.eval()
    check_width(network, to_float(source.test[torch.arange(1)].x), len(source.classes))
    place = Path(weights).parent if weights else Path()
    return Target(
        name=f"{model} {Path(weights).name}" if weights else model,
        model=network,
        test=source.test,
        classes=source.classes,
        threat=Threat(),
        about={"checkpoint": weights, "recipe": model, "data": data},
        results=place / "results",
    )
