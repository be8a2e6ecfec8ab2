"""Recipes: every hyper-parameter of a run as one frozen value, and the named ones derived from their names.

A name reads dataset-norm-model-method: `cifar10-linf-preact18-trades-2nd`; with `-released` at its end it is what the
authors' release runs, with `-fast` the same method at a third of the cost. Nothing else holds a hyper-parameter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from rattle.attacks import PGD
from rattle.data import Augment
from rattle.data.registry import Data
from rattle.errors import RattleError, unknown
from rattle.objectives import AT, Trades
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

METHODS = {
    "at": "adversarial training (Madry et al.)",
    "trades": "TRADES (Zhang et al.)",
    "at-awp": "AT with adversarial weight perturbation (Wu et al.)",
    "trades-awp": "TRADES with adversarial weight perturbation (Wu et al.)",
}

ORDERS = {"": (0, 0.3), "-1st": (1, 0.3), "-2nd": (2, 0.2)}  # suffix -> (order, the paper's eta)

NAME = re.compile(r"([a-z0-9]+)-(linf|l2)-(.+?)-(at|trades)(-awp)?(-1st|-2nd)?(-released)?(-fast)?")


def get_recipe(name: str) -> Recipe:
    """The recipe that a name spells out.

    >>> get_recipe("cifar10-l2-preact18-trades-awp-2nd").objective.eta
    0.2
    """
    match = NAME.fullmatch(name)
    if match is None or match[1] not in SETTINGS:
        raise unknown("recipe", name, list_recipes())
    dataset, _, model, base, awp, suffix, as_released, quickly = match.groups()
    norm: Norm = "linf" if match[2] == "linf" else "l2"
    setting = SETTINGS[dataset]
    epsilon, step_size = setting.step_sizes[norm]
    threat = Threat(norm=norm, epsilon=epsilon)
    order, eta = ORDERS[suffix or ""]
    trades = base == "trades"
    start, loss = ("gaussian", "kl") if trades else ("uniform", "ce")
    attack = PGD(threat=threat, step_size=step_size, loss=loss, start=start)
    recipe = Recipe(
        name=name,
        data=setting.data,
        model=model,
        width=setting.width,
        attack=attack,
        noise=Noise() if order else Noise(sigma=0),  # order 0 is the published baseline: no u
        objective=(Trades if trades else AT)(order=order, eta=eta),
        awp=(AWP(gamma=0.005, warmup=setting.warmup) if trades else AWP(gamma=0.01, warmup=0)) if awp else None,
        optimizer=SGD(lr=setting.lr, weight_decay=setting.weight_decay),
        epochs=setting.epochs,
        val_attack=replace(attack, loss="ce", start="uniform"),
    )
    recipe = released(recipe) if as_released else recipe
    return fast(recipe, setting) if quickly else recipe


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
    if not objective.order:
        return recipe  # without Taylor terms there is nothing the release does differently
    residual = recipe.model in ("preact18", "resnet18")
    objective = replace(objective, mode="released", second_factor=0.4 if awp and residual else 0.5)
    if isinstance(objective, Trades):
        objective = replace(objective, clean_weight="one-minus-eta")
    return replace(recipe, objective=objective, noise=Noise(sigma=0 if awp else 1e-4, where="convolutions"))


def list_recipes() -> list[str]:
    """The recipes that are listed; any other known model may stand in the same place."""
    return [
        f"{dataset}-{norm}-{model}-{method}{suffix}"
        for dataset, setting in SETTINGS.items()
        for norm in setting.step_sizes
        for model in setting.models
        for method in METHODS
        for suffix in ORDERS
    ]


def describe(name: str) -> str:
    """One line about a recipe."""
    recipe = get_recipe(name)
    base = "trades" if isinstance(recipe.objective, Trades) else "at"
    extra = ("", ", first-order Taylor term", ", first- and second-order Taylor terms")[recipe.objective.order]
    threat, epsilon = recipe.attack.threat, f"{recipe.attack.threat.epsilon:.4g}"
    return f"{METHODS[base + ('-awp' if recipe.awp else '')]}{extra}; {threat.norm} {epsilon}, {recipe.epochs} epochs"


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
