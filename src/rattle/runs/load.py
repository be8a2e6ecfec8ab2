"""Trained models from run folders and checkpoints."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import Checkpoint, read
from rattle.runs.paths import Run
from rattle.runs.source import own_source


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


def load(path: Path | str, *, averaged: bool = True, model: nn.Module | None = None) -> nn.Module:
    """The trained model of a checkpoint, or of a run folder's best one, in evaluation mode.

    averaged: take the averaged weights if the run has them; False takes the raw ones. model: a module to load the
    weights into, for a run whose network was given to `fit` in Python; it is changed in place and returned.
    """
    return load_model(open_checkpoint(path), averaged=averaged, model=model)


def build_model(
    recipe: Recipe, *, classes: int, channels: int, statistics: tuple[list[float], list[float]] | None = None
) -> nn.Module:
    """The recipe's network with fresh weights, drawn from torch's global generator.

    classes, channels: of the data; statistics: mean and standard deviation of each channel, None for no normalisation.
    """
    if recipe.model.partition(":")[0] == "python":  # the name that `fit` gives to a module handed to it
        raise RattleError(
            f"the network ({recipe.model}) was given in Python and is not stored: give it again, rattle.load(RUN, "
            "model=module) to measure it with rattle.evaluate, rattle.fit(..., model=module, data=...) to train it"
        )
    settings = {"width": recipe.width, "activation": recipe.activation, "normalise": statistics}
    return create_model(recipe.model, classes=classes, channels=channels, **settings)


def load_model(saved: Checkpoint, *, averaged: bool = True, model: nn.Module | None = None) -> nn.Module:
    """The network of a checkpoint with its weights, in evaluation mode; averaged, model: as for `load`."""
    with own_source(run_of(saved.path) if model is None else None, saved.recipe):
        if model is None:
            channels = saved.shape[0]
            unit = ([0.0] * channels, [1.0] * channels)  # replaced by the true statistics, buffers of the model
            statistics = unit if saved.recipe.normalise else None
            model = build_model(saved.recipe, classes=len(saved.classes), channels=channels, statistics=statistics)
        began = averaged and int(saved.tensors.get("average.n_averaged", 0)) > 0
        fill(model, saved.part("average.module" if began else "model"), saved.path)
    return model.eval()


def fill(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put the weights of a checkpoint file into a model; one that they do not fit is refused and stays as it was."""
    own = model.state_dict()
    shapes = [{name: tuple(value.shape) for name, value in state.items()} for state in (own, weights)]
    differing = [name for name in {**own, **weights} if shapes[0].get(name) != shapes[1].get(name)]
    if differing:
        mine, saved = (str(shape.get(differing[0], "missing")) for shape in shapes)
        raise RattleError(
            f"{path} holds another network: {len(differing)} names or shapes differ from the module's, "
            f"such as {differing[0]} ({saved} there, {mine} in the module)"
        )
    model.load_state_dict(weights)
