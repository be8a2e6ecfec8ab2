"""The names of recipes: dataset-norm-model-method, such as `cifar10-linf-preact18-trades-2nd`. Imports no torch.

A model that ends in `-silu` has SiLU for ReLU. The method is one of objectives/registry.py, then `-awp`, `-sam` or
`-asam`, then `-1st` or `-2nd` for the paper's Taylor terms; with `-released` at its end it is what the authors' release
runs, with `-fast` it costs a third.
"""

import re
from pathlib import Path

from rattle.errors import RattleError, unknown
from rattle.models.registry import check_network_name
from rattle.objectives.registry import METHODS, variants_of
from rattle.settings import check_type

ORDERS = {"": 0, "-1st": 1, "-2nd": 2}  # suffix -> order of the Taylor terms
# What a recipe's name calls networks of timm, which is no dependency: pip install timm
TIMM = {"convnext-t": "timm:convnext_tiny", "vit-s": "timm:vit_small_patch16_224"}


NORMS = ("linf", "l2")
NETWORKS = ("preact18", "wrn34-10", "vgg16", "mobilenetv2", "resnet18")
# Dataset -> the norms and the models of its recipes that are listed, each with every method.
DATASETS = {
    "digits": (NORMS, ("cnn",)),
    "cifar10": (NORMS, NETWORKS),
    "cifar100": (NORMS, NETWORKS),
    "svhn": (NORMS, NETWORKS),
    "imagenet": (("linf",), tuple(TIMM)),
}


def list_recipes() -> list[str]:
    """The names of recipes; any other known model can replace the model in a name."""
    found = []
    for dataset, (norms, models) in DATASETS.items():
        for norm in norms:
            for model in models:
                found += [f"{dataset}-{norm}-{model}-{method}" for method in method_names()]
    return found


def method_names() -> list[str]:
    """Every method with its orders of the Taylor terms, then those that have it with AWP."""
    found = []
    for awp in ("", "-awp"):
        for name in METHODS:
            variants = ("", *variants_of(name))
            if awp in variants:
                found += [f"{name}{awp}{order}" for order in ORDERS if order in variants]
    return found


def method_pattern() -> str:
    """What may stand at the end of a recipe's name: a group for the method, then one for each place of a suffix."""
    methods = "|".join(sorted(map(re.escape, METHODS), key=len, reverse=True))
    return rf"({methods})(-awp|-sam|-asam)?(-1st|-2nd)?(-released)?(-fast)?"


def split_method(text: str) -> tuple[str, set[str]]:
    """A method's name and the suffixes after it; raises RattleError for a name or variant that does not exist.

    >>> split_method("trades-2nd") == ("trades", {"-2nd"})
    True
    """
    check_type("method", text, str)
    match = re.fullmatch(method_pattern(), text)
    if match is None:
        raise unknown("method", text, method_names())
    name, *suffixes = match.groups()
    for suffix in ("-awp", "-1st", "-2nd"):
        if suffix in suffixes and suffix not in variants_of(name):
            raise RattleError(f"{name} has no {suffix} variant, got {text!r}")
    return name, set(filter(None, suffixes))


def split_recipe(name: str) -> tuple[str, str, str, str]:
    """Dataset, norm, model and method in a recipe's name; raises RattleError if it is none.

    >>> split_recipe("cifar10-linf-wrn34-10-trades-awp")
    ('cifar10', 'linf', 'wrn34-10', 'trades-awp')
    """
    check_type("the recipe's name", name, str)
    if re.fullmatch(method_pattern(), name):
        raise RattleError(f"{name} is a method: name a recipe of it, DATASET-NORM-MODEL-{name}, or use make_recipe")
    match = re.fullmatch(rf"({'|'.join(DATASETS)})-(linf|l2)-(.+?)-({method_pattern()})", name)
    if match is None:
        raise unknown("recipe", name, list_recipes())
    dataset, norm, model, method = match.groups()[:4]
    split_method(method)
    return dataset, norm, model, method


def check_recipe(text: str) -> None:
    """Raise RattleError for what is neither a recipe's name nor a YAML file or run folder that is there."""
    path = Path(text)
    if path.exists():
        return
    if path.suffix in (".yaml", ".yml"):
        raise RattleError(f"there is no recipe file {path}")
    if len(path.parts) > 1:
        raise RattleError(f"there is no run folder {text}")
    if text.startswith("-"):
        raise RattleError(f"the recipe comes first, before {text}")
    model = split_recipe(text)[2].removesuffix("-silu")
    if model not in TIMM:
        check_network_name(model)
