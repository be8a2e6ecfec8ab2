"""The recipe `custom` of rattle train: any images, any network, any method; the settings follow from the images."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rattle.cli.options import is_given, take_options
from rattle.data.sources import check_source, list_datasets
from rattle.errors import RattleError
from rattle.models.registry import check_network_name, list_models
from rattle.recipes.names import split_method
from rattle.recipes.schema import parse_number
from rattle.runs.io import Plain

if TYPE_CHECKING:
    from rattle.data.dataset import Dataset
    from rattle.recipes.recipe import Recipe
    from rattle.training.fit_inputs import Loaded

USAGE = """usage: rattle train custom --data.name DATA --model MODEL [options]

  --data.name  FILE.npz, a FOLDER of class folders, hub:OWNER/NAME or a dataset's name
  --model      FILE.py:FUNCTION, package.module:FUNCTION, timm:NAME or a network's name
  --method     as at the end of a recipe's name: at, trades, trades-awp, ... with -1st or -2nd (trades-2nd)
  --norm       linf or l2 (linf)
  --epsilon    size of the perturbations to resist, such as 8/255
Every other setting is an option as in any recipe: --epochs 50 --optimizer.lr 0.01 --data.augment.flip --seed 1
"""
METHOD = "trades-2nd"
OWN = ("data.name", "model", "method", "norm", "epsilon")
SMALL_SIDE = 64  # pixels; up to that side 8/255 and 128/255 are what colour images are usually defended against
USUAL_EPSILONS = {
    "linf": "usual are 8/255 for colour images of 32 pixels, 4/255 for photographs of 224, 0.3 for MNIST",
    "l2": "usual are 128/255 for colour images of 32 pixels, 3 for photographs of 224, 2 for MNIST",
}


def check_names(args: list[str]) -> None:
    """Refuse mistyped names of the model and the method, and images or a network that nobody named. No torch."""
    given, rest = take_options(args, OWN)
    if is_given(rest, "help") or "-h" in rest:
        return
    if "data.name" not in given:
        known = ", ".join(list_datasets())
        raise RattleError(f"there are no images: --data.name takes FILE.npz, a FOLDER, or one of {known}")
    if "model" not in given:
        known = ", ".join(list_models())
        raise RattleError(f"there is no network: --model takes FILE.py:FUNCTION, timm:NAME or one of {known}")
    check_source(given["data.name"])
    check_network_name(given["model"])
    split_method(given.get("method", METHOD))


def custom_recipe(args: list[str]) -> tuple[Recipe, list[str]]:
    """The recipe for what the arguments name, before anything is known of the images; the arguments that are left."""
    from rattle.recipes.catalog import DATASET_SETTINGS, make_recipe, usual_data

    check_names(args)
    if "--help" in args:
        print(USAGE)
    given, rest = take_options(args, OWN)
    norm = given.get("norm", "linf")
    if norm not in ("linf", "l2"):
        raise RattleError(f"--norm must be linf or l2, got {norm!r}")
    settings: Plain = {"model": given.get("model", "MODEL"), "norm": norm}
    if "epsilon" in given:
        settings["epsilon"] = parse_number(given["epsilon"], "--epsilon")
    name, method = given.get("data.name", "DATA"), given.get("method", METHOD)
    recipe = make_recipe(method, data=usual_data(name), **settings)
    if name not in DATASET_SETTINGS:
        recipe = replace(recipe, epochs=recipe.epochs // 2)  # a run can be made longer later
    return recipe, rest


def fit_to_images(recipe: Recipe, args: list[str]) -> tuple[Recipe, Loaded | None]:
    """The recipe with what its images decide and the arguments do not; the images, if they had to be read for it."""
    from rattle.recipes.catalog import DATASET_SETTINGS, batch_size
    from rattle.training.fit_inputs import Loaded

    if recipe.data.name in DATASET_SETTINGS:
        return recipe, None
    images = recipe.data.load()
    if not is_given(args, "epsilon"):
        check_usual(images, recipe.attack.threat.norm)
    if not is_given(args, "batch-size"):
        recipe = replace(recipe, batch_size=batch_size(len(images.train), recipe.batch_size))
    return recipe, Loaded(images)


def check_usual(data: Dataset, norm: str) -> None:
    """Ask for epsilon unless there is a usual one; what is usual depends on the images."""
    if data.channels == 3 and data.size <= SMALL_SIDE:
        return
    raise RattleError(
        f"give --epsilon: {data.name} has images of {data.size} pixels in {data.channels} channels, for which there is "
        f"no usual one ({USUAL_EPSILONS[norm]})"
    )
