"""A module and images given to `fit` in Python: checked, converted to one form, and named in the recipe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import data as torch_data

from rattle.data import Data, Dataset, Images
from rattle.data.dataset import choose_images
from rattle.errors import RattleError
from rattle.inputs import (
    AnyArray,
    Examples,
    as_tensors,
    finite_logits,
    is_correct,
    log,
    logits_of,
    to_float,
    weights_type,
)
from rattle.losses import refuse_one_logit
from rattle.recipes.catalog import DATASET_SETTINGS, resolve
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import digest
from rattle.runs.paths import Run
from rattle.runs.source import check_version
from rattle.training.state import TrainState, init_state
from rattle.weights import eval_mode

FINE_TUNING = 0.02  # a larger learning rate trains from scratch
START_SAMPLE = 250  # images that the weights which a run starts from are tried on


@dataclass(frozen=True, slots=True)
class Loaded:
    """The images of the recipe's own data, which the caller has read already."""

    images: Dataset


TrainingData = tuple[AnyArray, AnyArray] | torch_data.Dataset | torch_data.DataLoader | Dataset | Data | Loaded


def first_state(
    recipe: Recipe,
    run: Run,
    model: nn.Module | None,
    data: TrainingData | None,
    classes: Sequence[str] | None,
    resume: bool,
    trust_code: bool,
) -> TrainState:
    """The state of a run before its first step; arguments as for `fit`."""
    recipe, images = take_images(recipe, model, data, classes)
    if model is not None and len(images.train):
        logits = sample_logits(model, images.train[torch.arange(1)].x)
        if bool((logits <= 0).all()) and torch.allclose(logits.logsumexp(1), torch.zeros_like(logits[:, 0]), atol=1e-5):
            log.warning("the model returns log-probabilities: leave out its log-softmax, the losses have one")
    recipe = as_begun(recipe, run) if resume and run.exists() else recipe.refuse_idle()
    check_version(run if resume else None, recipe)
    return init_state(recipe, images, model, trust_code=trust_code)


def start_note(state: TrainState) -> str:
    """The clean accuracy of the weights that a run starts from, and a hint if it is near chance."""
    from rattle.evaluation.caveats import NEAR_CHANCE
    from rattle.evaluation.normalisation import missing_normalisation

    images = state.data.val or state.data.train
    sample = images[choose_images(images.y, START_SAMPLE)].to(state.device)
    x = state.floats(sample.x)
    with eval_mode(state.model):
        accuracy = float(is_correct(state.model, x, sample.y).double().mean())
        hints = list(missing_normalisation(state.model, x, sample.y))
    line = f"starts from {accuracy:.1%} clean accuracy on {len(x)} images"
    if accuracy < NEAR_CHANCE / len(state.data.classes):
        line += ", which is near chance: if it was trained, check labels and normalisation"
    elif state.recipe.optimizer.lr > FINE_TUNING:
        rate = state.recipe.optimizer.lr
        line += f", which a learning rate of {rate:g} may undo: rattle.harden begins with a smaller one"
    return "; ".join([line, *hints])


def take_images(
    recipe: Recipe, model: nn.Module | None, data: TrainingData | None, classes: Sequence[str] | None
) -> tuple[Recipe, Dataset]:
    """The recipe with what was given named in it, and the images, some of them held out; arguments as for `fit`."""
    if model is not None:
        recipe = name_module(recipe, model)
    if isinstance(data, Data):
        recipe, data = replace(recipe, data=data), None
    if data is None or isinstance(data, Loaded):
        if classes is not None:
            raise RattleError("classes are the names of the labels in data: give both, or neither")
        return recipe, recipe.data.load() if data is None else data.images
    if recipe.data.resize is not None:
        raise RattleError("data.resize does nothing to images given in Python: scale them yourself")
    found = as_dataset(data, model, classes)
    usual = DATASET_SETTINGS.get(recipe.data.name)
    if usual and recipe.data.val_size == usual.data.val_size:  # chosen for the dataset that the recipe names
        recipe = replace(recipe, data=replace(recipe.data, val_size=None))
    if found.val is not None and recipe.data.val_size not in (None, len(found.val)):
        raise RattleError(f"data.val_size does nothing: the Dataset has {len(found.val)} held-out images of its own")
    if found.train.decoded:
        raise RattleError(
            "images that are decoded on the fly are given as Data(name=FOLDER, crop=...), not as a Dataset"
        )
    train, other = found.train, found.val or found.test
    tensors = {"train.x": train.x, "train.y": train.y, "val.x": other.x, "val.y": other.y}
    name = f"memory:{digest(tensors, {})[:16]}"
    recipe = replace(recipe, data=replace(recipe.data, name=name, root=None))
    settings = recipe.data
    return recipe, replace(found, name=name).split(settings.train_size, settings.val_size, settings.split_seed)


def name_module(recipe: Recipe, model: object) -> Recipe:
    """The recipe for a module in place of its own network, whose width and activation mean nothing to it."""
    if not isinstance(model, nn.Module):
        raise RattleError(f"model must be a torch.nn.Module with weights, got {model!r}; name others in the recipe")
    if recipe.normalise:
        raise RattleError("normalise is for named networks: make the normalisation the first layer of your module")
    if not any(p.requires_grad for p in model.parameters()):
        raise RattleError("no parameter of the module requires a gradient: there is nothing to train")
    name = f"python:{type(model).__module__}.{type(model).__qualname__}"
    return replace(recipe, model=name, width=None, activation="relu")


def sample_logits(model: nn.Module, x: Tensor) -> Tensor:
    """A module's outputs for the images x; refuses those that the losses cannot be taken of."""
    device, dtype = next(model.parameters()).device, weights_type(model, x.dtype)
    if dtype != torch.get_default_dtype():
        raise RattleError(f"the model's weights are {dtype}, training takes {torch.get_default_dtype()}: model.float()")
    with torch.enable_grad(), eval_mode(model):
        logits = finite_logits(logits_of(model, to_float(x, torch.contiguous_format).to(device)))
    if not logits.requires_grad:
        raise RattleError("the model cannot be trained: its logits have no gradient by its weights")
    refuse_one_logit(logits)
    if bool((logits >= 0).all()) and torch.allclose(logits.sum(1), torch.ones_like(logits[:, 0]), atol=1e-5):
        raise RattleError("the model returns probabilities: return the logits before the softmax, the losses have one")
    return logits


def as_dataset(data: Any, model: nn.Module | None, classes: Sequence[str] | None) -> Dataset:
    """Images for training, nothing held out yet; the test part is empty unless `data` is a Dataset of this library."""
    if isinstance(data, Dataset):
        if classes is not None:
            raise RattleError("a rattle.data.Dataset names its classes itself: leave classes out")
        return data
    x, y = as_images(data, model)
    outputs = int(y.max()) + 1 if model is None else sample_logits(model, x[:2]).shape[1]
    if classes is None:
        source = data.dataset if isinstance(data, torch_data.DataLoader) else data
        classes = getattr(source, "classes", None)  # torchvision's datasets have them
    if classes is None:
        classes = [str(label) for label in range(outputs)]
    images, none = Images(x, y), Images(x[:0], y[:0])
    return Dataset(name="data", train=images, test=none, classes=tuple(map(str, classes)))


def as_images(data: Any, model: nn.Module | None) -> Examples:
    """Images [n, C, H, W] and labels on the CPU, of a pair of arrays, a torch Dataset or a DataLoader."""
    if isinstance(data, torch_data.Dataset | torch_data.DataLoader):
        data = (data, None)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise RattleError(f"data must be (images, labels), a Dataset or a DataLoader, got {type(data).__name__}")
    x, y = as_tensors(nn.Identity() if model is None else model, *data)
    if x.ndim != 4:
        shape = "[n, C, H, W] or [n, H, W, C] (grey ones: x[:, None])"
        raise RattleError(f"images must have shape {shape}, got {list(x.shape)}")
    return x.detach().cpu(), y.cpu()


def as_begun(recipe: Recipe, run: Run) -> Recipe:
    """The recipe of a run that is resumed: a module may have moved in the code; other images are refused."""
    begun = resolve(str(run.folder))
    if begun.data.name != recipe.data.name and begun.data.name.startswith("memory:"):
        raise RattleError(
            f"{run.folder} was trained on other images than those given now: resume it with the same data in the same "
            "order (a Dataset that changes its images at random cannot be resumed; see data.augment of a recipe)"
        )
    if begun.model.startswith("python:") and recipe.model.startswith("python:"):
        return replace(recipe, model=begun.model)  # `restore` compares names and shapes
    return recipe
