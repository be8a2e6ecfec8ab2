"""Trained models from run folders and checkpoints."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import Checkpoint, read
from rattle.runs.paths import Run


def resolve_checkpoint(path: Path | str) -> Path:
    """The checkpoint that a path means: itself, or the best (else the last) one of a run folder."""
    path = Path(path)
    if path.is_dir():
        run = Run(path)
        for name in ("best", "last"):
            if run.checkpoint(name).is_file():
                return run.checkpoint(name)
        raise RattleError(f"{path} holds no checkpoint; train there with `rattle train RECIPE --out {path}`")
    if not path.exists():
        raise RattleError(f"there is no run or checkpoint {path}")
    return path


def run_of(checkpoint: Path) -> Run | None:
    """The run folder a checkpoint lies in, if it lies in one."""
    folder = checkpoint.parent.parent
    return Run(folder) if (folder / "recipe.yaml").is_file() else None


def open_checkpoint(path: Path | str) -> Checkpoint:
    return read(resolve_checkpoint(path))


def load(path: Path | str, *, averaged: bool = True) -> nn.Module:
    """The trained model of a run folder (its best checkpoint) or checkpoint, in evaluation mode.

    Averaged weights come first when the run has them; `averaged=False` asks for the raw ones.
    """
    return load_model(open_checkpoint(path), averaged=averaged)


def build_model(
    recipe: Recipe, *, classes: int, channels: int, statistics: tuple[list[float], list[float]] | None = None
) -> nn.Module:
    """The recipe's network, freshly initialised from torch's random state."""
    return create_model(
        recipe.model,
        classes=classes,
        channels=channels,
        width=recipe.width,
        activation=recipe.activation,
        normalise=statistics,
    )


def load_model(saved: Checkpoint, *, averaged: bool = True) -> nn.Module:
    """The network of a checkpoint with its weights."""
    unit = ([0.0] * saved.shape[0], [1.0] * saved.shape[0])  # the true statistics are among the weights
    statistics = unit if saved.recipe.normalise else None
    model = build_model(saved.recipe, classes=len(saved.classes), channels=saved.shape[0], statistics=statistics)
    average = saved.part("average")
    if averaged and average and int(average["n_averaged"]) > 0:
        weights = {key.removeprefix("module."): value for key, value in average.items() if key != "n_averaged"}
    else:
        weights = saved.part("model")
    model.load_state_dict(weights)
    return model.eval()
