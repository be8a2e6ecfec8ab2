"""Trained models from run folders and checkpoints."""

from pathlib import Path

from torch import nn

from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import Checkpoint, read
from rattle.runs.paths import Run


def resolve_checkpoint(path: Path | str) -> Path:
    """The checkpoint file that a path means: itself, or of a run folder the best checkpoint, else the last."""
    path = Path(path)
    if path.is_dir():
        for file in (Run(path).checkpoint("best"), Run(path).checkpoint("last")):
            if file.is_file():
                return file
        raise RattleError(f"{path} holds no checkpoint; train there with `rattle train RECIPE --out {path}`")
    if not path.exists():
        raise RattleError(f"there is no run or checkpoint {path}")
    return path


def run_of(checkpoint: Path) -> Run | None:
    """The run that a checkpoint file belongs to, if any."""
    run = Run(checkpoint.parent.parent)
    return run if run.exists() else None


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Read the checkpoint of a run folder or file, see `resolve_checkpoint`."""
    return read(resolve_checkpoint(path))


def load(path: Path | str, *, averaged: bool = True) -> nn.Module:
    """The trained model of a checkpoint, or of a run folder's best one, in evaluation mode.

    averaged: take the averaged weights if the run has them; False takes the raw ones.
    """
    return load_model(open_checkpoint(path), averaged=averaged)


def build_model(
    recipe: Recipe,
    *,
    classes: int,
    channels: int,
    statistics: tuple[list[float], list[float]] | None = None,
    pretrained: bool = True,
) -> nn.Module:
    """The recipe's network with fresh weights, drawn from torch's global generator.

    classes, channels: of the data; statistics: mean and standard deviation of each channel, None for no normalisation;
    pretrained: as for `create_model`.
    """
    settings = {
        "width": recipe.width,
        "activation": recipe.activation,
        "normalise": statistics,
        "pretrained": pretrained,
    }
    return create_model(recipe.model, classes=classes, channels=channels, **settings)


def load_model(saved: Checkpoint, *, averaged: bool = True) -> nn.Module:
    """The network of a checkpoint with its weights, in evaluation mode; averaged: as for `load`."""
    channels = saved.shape[0]
    unit = ([0.0] * channels, [1.0] * channels)  # replaced by the true statistics, which are buffers of the model
    statistics = unit if saved.recipe.normalise else None
    sizes = {"classes": len(saved.classes), "channels": channels}
    model = build_model(saved.recipe, **sizes, statistics=statistics, pretrained=False)
    began = averaged and int(saved.tensors.get("average.n_averaged", 0)) > 0
    model.load_state_dict(saved.part("average.module" if began else "model"))
    return model.eval()
