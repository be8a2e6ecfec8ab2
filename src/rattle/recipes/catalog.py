"""Named recipes. A name reads dataset-norm-model-method, such as `cifar10-linf-preact18-trades-2nd`.

The method is one of objectives/registry.py, then `-awp`, then `-1st` or `-2nd` for the paper's Taylor terms; with
`-released` at its end it is what the authors' release runs, with `-fast` the same method at a third of the cost.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from rattle.data import Augment
from rattle.data.registry import Data
from rattle.errors import RattleError, unknown
from rattle.objectives import AT, Method, Taylor, Trades
from rattle.objectives.registry import METHODS
from rattle.objectives.taylor_terms import PUBLISHED_ETA
from rattle.recipes.recipe import SGD, Recipe
from rattle.recipes.schedules import OneCycle
from rattle.threat import Norm, Threat
from rattle.weights import AWP, EMA, Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a dataset decides: its threats, its schedule, its augmentation."""

    data: Data
    step_sizes: dict[Norm, tuple[float, float]]  # norm -> (epsilon, step size)
    lr: float = 0.1
    epochs: int = 200
    warmup: int = 10  # AWP's, on TRADES
    weight_decay: float = 5e-4
    width: int | None = None  # of the listed models; the published width when None
    fast_batch: int = 256  # of `-fast` recipes; the rate grows with it
    fast_decay: float = 0.995  # of their weight average: its window is a small part of the run's steps
    models: tuple[str, ...] = ("preact18", "wrn34-10", "vgg16", "mobilenetv2", "resnet18")  # those that are listed


PAPER_THREATS: dict[Norm, tuple[float, float]] = {"linf": (8 / 255, 2 / 255), "l2": (128 / 255, 15 / 255)}

NO_AUGMENT = Augment(pad=0, flip=False)

SETTINGS = {
    # 8x8 grey images: a fifth of the grey range per pixel leaves a digit readable and a plain network helpless
    "digits": Setting(
        data=Data(name="digits", val_size=130, augment=NO_AUGMENT),
        step_sizes={"linf": (0.2, 0.05), "l2": (0.8, 0.2)},
        lr=0.05,
        epochs=30,
        warmup=5,
        models=("cnn",),
        width=16,
        fast_batch=32,  # 1167 images: a larger batch would leave too few steps
        fast_decay=0.97,
    ),
    "cifar10": Setting(data=Data(name="cifar10", val_size=1000), step_sizes=PAPER_THREATS),
    "cifar100": Setting(data=Data(name="cifar100", val_size=1000), step_sizes=PAPER_THREATS),
    "svhn": Setting(
        data=Data(name="svhn", val_size=1000, augment=Augment(flip=False)), step_sizes=PAPER_THREATS, lr=0.01
    ),
}

ORDERS = {"": 0, "-1st": 1, "-2nd": 2}  # suffix -> order of the Taylor terms


def get_recipe(name: str) -> Recipe:
    """The recipe that a name spells out.

    >>> get_recipe("cifar10-l2-preact18-trades-awp-2nd").objective.taylor.eta
    0.2
    """
    methods = "|".join(sorted(map(re.escape, METHODS), key=len, reverse=True))
    pattern = rf"([a-z0-9-]+?)-(linf|l2)-(.+?)-({methods})(-awp)?(-1st|-2nd)?(-released)?(-fast)?"
    match = re.fullmatch(pattern, name)
    if match is None or match[1] not in SETTINGS:
        raise unknown("recipe", name, list_recipes())
    dataset, _, model, base, awp, suffix, as_released, shortened = match.groups()
    norm: Norm = "linf" if match[2] == "linf" else "l2"
    setting, method, order = SETTINGS[dataset], METHODS[base], ORDERS[suffix or ""]
    if (awp and method.awp is None) or (order and not hasattr(method.objective, "taylor")):
        raise RattleError(f"{base} has no {'-awp' if awp and method.awp is None else suffix} variant, got {name!r}")
    objective = method.objective
    if order:
        objective = replace(objective, taylor=Taylor(order=order, eta=PUBLISHED_ETA[order]))  # type: ignore[type-var]
    epsilon, step_size = setting.step_sizes[norm]
    attack = replace(method.attack, threat=Threat(norm=norm, epsilon=epsilon), step_size=step_size)
    recipe = Recipe(
        name=name,
        data=setting.data,
        model=model,
        width=setting.width,
        attack=attack,
        noise=Noise() if order else Noise(sigma=0),  # without Taylor terms it is the published baseline: no u
        objective=objective,
        awp=awp_of(method, setting) if awp else None,
        optimizer=SGD(lr=setting.lr, weight_decay=setting.weight_decay),
        epochs=setting.epochs,
        val_attack=replace(attack, loss="ce", start="uniform"),
    )
    recipe = released(recipe) if as_released else recipe
    return fast(recipe, setting) if shortened else recipe


def awp_of(method: Method, setting: Setting) -> AWP | None:
    """AWP as published for a method, its warm-up shortened with the dataset's runs."""
    return replace(method.awp, warmup=setting.warmup) if method.awp and method.awp.warmup else method.awp


def fast(recipe: Recipe, setting: Setting) -> Recipe:
    """The same method for people without a cluster: a third of the epochs, half the inner steps (docs/performance.md).

    One cycle of the learning rate up to twice the usual peak, an average of the weights, a larger batch.
    """
    attack = recipe.attack
    return replace(
        recipe,
        attack=replace(attack, steps=attack.steps // 2, step_size=1.6 * attack.step_size),
        awp=replace(recipe.awp, warmup=round(recipe.awp.warmup / 3)) if recipe.awp else None,
        average=EMA(decay=setting.fast_decay),
        optimizer=replace(recipe.optimizer, lr=2 * recipe.optimizer.lr),
        schedule=OneCycle(),
        epochs=round(recipe.epochs / 3),
        batch_size=setting.fast_batch,
        evaluate_every=2,
    )


def released(recipe: Recipe) -> Recipe:
    """The recipe as the authors' release runs it, where that differs from the paper (docs/method.md)."""
    objective, awp = recipe.objective, recipe.awp is not None
    if not isinstance(objective, AT | Trades):
        raise RattleError(f"the authors released AT and TRADES, not {objective.title}: leave out -released")
    if not objective.taylor.order:
        return recipe  # without Taylor terms there is nothing the release does differently
    residual = recipe.model in ("preact18", "resnet18")
    taylor = replace(objective.taylor, mode="released", second_factor=0.4 if awp and residual else 0.5)
    objective = replace(objective, taylor=taylor)
    if isinstance(objective, Trades):
        objective = replace(objective, clean_weight="one-minus-eta")
    return replace(recipe, objective=objective, noise=Noise(sigma=0 if awp else 1e-4, where="convolutions"))


def list_recipes() -> list[str]:
    """The names that are listed; any other known model may stand in the model's place."""
    return [
        f"{dataset}-{norm}-{model}-{method}{suffix}"
        for dataset, setting in SETTINGS.items()
        for norm in setting.step_sizes
        for model in setting.models
        for method in method_names()
        for suffix in ORDERS
        if not suffix or hasattr(METHODS[method.removesuffix("-awp")].objective, "taylor")
    ]


def method_names() -> list[str]:
    """Every method, then those that have it with AWP."""
    return [*METHODS, *(f"{name}-awp" for name, method in METHODS.items() if method.awp)]


def describe(name: str) -> str:
    """One line about a recipe."""
    recipe = get_recipe(name)
    base = next(method for method in METHODS.values() if type(method.objective) is type(recipe.objective))
    threat = recipe.attack.threat
    papers = f"{base.paper}{', Wu et al. 2020' if recipe.awp else ''}"
    return f"{recipe.method} ({papers}); {threat.norm} {threat.epsilon:.4g}, {recipe.epochs} epochs"


def resolve(text: str) -> Recipe:
    """A named recipe, a YAML file, or a run folder that holds one."""
    path = Path(text)
    if path.is_dir():
        path = path / "recipe.yaml"
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise RattleError(f"there is no recipe file {path}")
        try:
            return Recipe.from_yaml(path.read_text(encoding="utf-8"))
        except RattleError as reason:
            raise RattleError(f"{path}: {reason}") from reason
    return get_recipe(text)
