"""Published models: model.safetensors, and a config.json that says how to build its network. Reading executes nothing.

A published folder has a README.md too, and the run's recipe.yaml and results where a run folder has them. What is read
here is untrusted: a network is one of ours or timm's, and `load.py` builds it only if its tensors are there.
"""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from rattle import __version__
from rattle.data.dataset import Names
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.recipes.recipe import Recipe
from rattle.recipes.saved import upgraded
from rattle.recipes.schema import from_plain, to_plain
from rattle.runs.checkpoint import Checkpoint, check_images
from rattle.runs.io import Plain, read_json
from rattle.runs.paths import CONFIG, is_published

CONFIG_FORMAT = 1  # of config.json


def pack(saved: Checkpoint, model: nn.Module) -> tuple[bytes, Plain]:
    """The contents of model.safetensors and of config.json for the model of a checkpoint."""
    check_model_name(saved.recipe.model, str(saved.path))
    tensors = {key: value.cpu().contiguous().clone() for key, value in model.state_dict().items()}
    weights, recipe = save(tensors, {"format": "pt"}), without_paths(saved.recipe)
    config = {
        "library": "rattle",
        "format": CONFIG_FORMAT,
        "rattle": __version__,
        "classes": list(saved.classes),
        "shape": list(saved.shape),
        "epoch": saved.progress.get("epoch"),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "recipe": {"method": recipe.method, **to_plain(recipe)},
    }
    return weights, config


def without_folder(name: str) -> str:
    """A name to publish: of a path its last part, since the folders of a machine are private.

    >>> without_folder("/home/me/digits.npz"), without_folder("hub:owner/name"), without_folder("cifar10")
    ('digits.npz', 'hub:owner/name', 'cifar10')
    """
    return name if is_published(name) or name.startswith("hub:") else Path(name).name


def without_paths(recipe: Recipe) -> Recipe:
    """The recipe as it is published, see `without_folder`."""
    extra = without_folder(recipe.data.extra) if recipe.data.extra else None
    data: Data = replace(recipe.data, name=without_folder(recipe.data.name), root=None, extra=extra)
    return replace(recipe, data=data, init=without_folder(recipe.init) if recipe.init else None)


def read_config(path: Path, where: str) -> Plain:
    """The object in a config.json; raises RattleError if `rattle push` did not write it. `where` is named in errors."""
    config = read_json(path, [])
    if config is None or config.get("library") != "rattle" or not isinstance(config.get("format"), int):
        advice = "weights of other code are opened by `--model NAME --weights FILE`"
        raise RattleError(f"{where}: its {CONFIG} was not written by `rattle push`; {advice}")
    if config["format"] > CONFIG_FORMAT:
        raise RattleError(
            f"{where} has format {config['format']}; this version reads up to {CONFIG_FORMAT}: upgrade rattle"
        )
    return config


def read_published(weights: Path, config: Plain, where: str) -> Checkpoint:
    """The checkpoint that a file of weights and the object in its config.json make; `where` is named in errors."""
    classes, shape, recipe = check_config(config, where)
    try:
        content = weights.read_bytes()
        if hashlib.sha256(content).hexdigest() != config.get("sha256"):
            raise RattleError(f"{where} is damaged: the checksum of {weights.name} is not the one in its {CONFIG}")
        tensors = load(content)
    except (OSError, SafetensorError) as reason:
        raise RattleError(f"{where}: {weights.name} cannot be read: {reason}") from reason
    epoch = config.get("epoch")
    return Checkpoint(weights, recipe, classes, shape, {"epoch": epoch}, {f"model.{k}": v for k, v in tensors.items()})


def check_config(config: Plain, where: str) -> tuple[Names, tuple[int, ...], Recipe]:
    """Classes, shape [C, H, W] and recipe of a config.json; RattleError if it is ill-formed or names code to run."""
    try:
        classes, shape = check_images(config.get("classes"), config.get("shape"))
    except RattleError as reason:
        raise RattleError(f"{where}: in its {CONFIG}, {reason}") from reason
    plain = config.get("recipe")
    check_model_name(plain.get("model") if isinstance(plain, dict) else None, where)
    try:
        recipe = from_plain(Recipe, upgraded(plain, to_open=True))
        return classes, shape, without_paths(recipe)  # nor may it name files of the reader's machine
    except RattleError as reason:
        made = f"published by rattle {config.get('rattle')}, this is {__version__}"
        raise RattleError(f"{where}: {reason} ({made})") from reason


def check_model_name(model: Any, where: str) -> None:
    """Refuse a network that is code to run, or too deep to be built."""
    if not isinstance(model, str) or re.search(r"\d{5}", model):
        raise RattleError(f"{where}: {model!r} is no model's name")
    if ":" in model and not re.fullmatch(r"timm:[\w.-]+", model):
        raise RattleError(
            f"{where}: its network {model} is code, which a published model may not name: loading one "
            "executes nothing, so built-in networks and timm:NAME only"
        )
