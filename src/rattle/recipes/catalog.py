"""Named recipes; names.py says how their names are built."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rattle.data import Augment
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.objectives import Taylor, Trades
from rattle.objectives.registry import METHODS
from rattle.objectives.taylor_terms import PUBLISHED_ETA
from rattle.objectives.trades import Released
from rattle.recipes.names import ORDERS, TIMM, check_recipe, split_method, split_recipe
from rattle.recipes.reading import read_text
from rattle.recipes.recipe import SGD, AdamW, Recipe, ValAttack
from rattle.recipes.schedules import Cosine, OneCycle, Piecewise
from rattle.recipes.schema import ball_text, replace_at
from rattle.settings import Plain, check_type, with_fields
from rattle.threat import Norm, Threat
from rattle.weights import ASAM, AWP, EMA, SAM, Noise


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
    most_batch: int = 8192  # where few images would leave few steps
    fast_batch: int = 256  # of `-fast` recipes; the rate grows with it
    fast_decay: float = 0.995  # of their weight average: its window is a small part of the run's steps
    steps: int | None = None  # of the inner attack; the method's when None
    average: EMA | None = None  # for methods that have none of their own
    training: Plain = field(default_factory=dict)  # fields of Recipe that hold for every method
    window: float = 1.0  # steps that a method's own EMA looks back over those published: fewer where runs are shorter


PAPER_THREATS: dict[Norm, tuple[float, float]] = {"linf": (8 / 255, 2 / 255), "l2": (128 / 255, 15 / 255)}

FEWEST_STEPS, SMALLEST_BATCH = 20, 16  # an epoch of few images has smaller batches
NO_AUGMENT = Augment(pad=0, flip=False)
MEMORY = Data(name="memory", augment=NO_AUGMENT)  # images given to `fit`: nobody knows if they may be mirrored

DATASET_SETTINGS = {
    # 8x8 grey images: a fifth of the grey range per pixel leaves a digit readable and a plain network helpless
    "digits": Setting(
        data=Data(name="digits", val_size=130, augment=NO_AUGMENT),
        step_sizes={"linf": (0.2, 0.05), "l2": (0.8, 0.2)},
        lr=0.05,
        epochs=30,
        warmup=5,
        width=16,
        most_batch=128,
        fast_batch=32,  # 1167 images: a larger batch would leave too few steps
        fast_decay=0.97,
        window=0.01,
    ),
    "cifar10": Setting(data=Data(name="cifar10", val_size=1000), step_sizes=PAPER_THREATS),
    "cifar100": Setting(data=Data(name="cifar100", val_size=1000), step_sizes=PAPER_THREATS),
    "svhn": Setting(
        data=Data(name="svhn", val_size=1000, augment=Augment(flip=False)), step_sizes=PAPER_THREATS, lr=0.01
    ),
    # As transformers and ConvNeXt are trained against 4/255: three steps of two thirds of it, AdamW, an average
    "imagenet": Setting(
        data=Data(name="imagenet", crop=224, val_size=1000, augment=Augment(pad=0, area=0.08)),
        step_sizes={"linf": (4 / 255, 8 / 765)},
        steps=3,
        lr=1e-3,
        epochs=100,
        warmup=5,
        fast_batch=1024,
        fast_decay=0.9998,
        average=EMA(decay=0.9998),
        training={"optimizer": AdamW(lr=1e-3), "schedule": Cosine(warmup=0.1), "batch_size": 1024, "normalise": True},
    ),
}
SHARPNESS = {"-sam": SAM(), "-asam": ASAM()}  # suffix -> what takes AWP's place, on any method
PAPERS = {AWP: "Wu et al. 2020", SAM: "Foret et al. 2021", ASAM: "Kwon et al. 2021"}


def get_recipe(name: str) -> Recipe:
    """The recipe that a name spells out.

    >>> get_recipe("cifar10-l2-preact18-trades-awp-2nd").objective.taylor.eta
    0.2
    """
    dataset, norm, model, method = split_recipe(name)
    changes: Plain = {"activation": "silu"} if model.endswith("-silu") else {}
    model = model.removesuffix("-silu")
    model = TIMM.get(model, model)
    data = DATASET_SETTINGS[dataset].data
    return make_recipe(method, data=data, model=model, norm="linf" if norm == "linf" else "l2", name=name, **changes)


def usual_data(name: str) -> Data:
    """The data of a dataset's recipes; any other is not augmented, as nobody knows if its images may be mirrored."""
    return DATASET_SETTINGS[name].data if name in DATASET_SETTINGS else Data(name=name, augment=NO_AUGMENT)


def make_recipe(
    method: str,
    *,
    data: Data = MEMORY,
    model: str = "python",
    norm: Norm = "linf",
    epsilon: float | None = None,
    step_size: float | None = None,
    name: str | None = None,
    **changes: Any,
) -> Recipe:
    """A recipe with the settings of the named ones, for any images and any network.

    method: the end of a recipe's name, such as trades-2nd or at-awp-1st-fast. data, model: those given to `fit`
    when left out. norm, epsilon, step_size: the perturbations to resist, and the inner attack's step; the dataset's, or
    8/255 (linf) or 128/255 (l2), and a step in proportion. name: of the run, in tables. changes: fields of `Recipe`.

    >>> make_recipe("trades-2nd", epsilon=4 / 255, epochs=30).method
    'TRADES + 1st + 2nd'
    """
    if epsilon is not None:
        check_type("epsilon", epsilon, float)
    setting = DATASET_SETTINGS.get(data.name) or Setting(data=data, step_sizes=PAPER_THREATS)
    method_name, suffixes = split_method(method)
    base = METHODS[method_name]
    attack = replace(base.attack, **threat_settings(setting, norm, epsilon, step_size))
    if setting.steps is not None:
        attack = replace(attack, steps=setting.steps)
    objective, noise = base.objective, Noise(sigma=0)  # the published baseline has no u
    for suffix, order in ORDERS.items():
        if suffix in suffixes:
            taylor = Taylor(order=order, eta=PUBLISHED_ETA[order])
            objective, noise = replace(objective, taylor=taylor), Noise()  # type: ignore[type-var]
    average = base.average or setting.average
    if isinstance(base.average, EMA) and setting.window != 1:
        average = replace(base.average, decay=1 - (1 - base.average.decay) / setting.window)
    awp = next((kind for suffix, kind in SHARPNESS.items() if suffix in suffixes), None)
    if "-awp" in suffixes and base.awp is not None:  # as published, its warm-up shortened with the dataset's runs
        awp = replace(base.awp, warmup=setting.warmup) if base.awp.warmup else base.awp
    batch = min(base.batch_size, setting.most_batch)
    recipe = Recipe(
        name=name or f"{short(data.name)}-{norm}-{short(model)}-{method}",
        data=data,
        model=model,
        width=None if ":" in model else setting.width,
        attack=attack,
        noise=noise,
        objective=objective,
        awp=awp,
        average=average,
        ramp=base.ramp,
        optimizer=SGD(lr=setting.lr * base.rate * (batch / base.batch_size), weight_decay=setting.weight_decay),
        schedule=Piecewise(drops=base.drops, factor=base.rate_factor),
        epochs=round(setting.epochs * base.length),
        batch_size=batch,
        val_attack=ValAttack(steps=attack.steps, step_size=attack.step_size),
    )
    own_network = model == "python" or ":" in model  # which keeps its activation and normalisation
    for path, value in base.settings.items():
        if not own_network or path not in ("activation", "normalise"):
            recipe = replace_at(recipe, path, value)
    for name, value in setting.training.items():
        if name != "normalise" or model != "python":
            recipe = replace(recipe, **{name: value})
    if "-released" in suffixes:
        recipe = released(recipe)
    if "-fast" in suffixes:
        recipe = fast(recipe, setting)
    return with_fields(recipe, changes, "a recipe")


def batch_size(n: int, usual: int = 128) -> int:
    """The usual batch size, or less where an epoch of n images would have few steps.

    >>> batch_size(50_000), batch_size(1_000)
    (128, 32)
    """
    return min(usual, 2 ** int(math.log2(max(n / FEWEST_STEPS, SMALLEST_BATCH))))


def threat_settings(setting: Setting, norm: Norm, epsilon: float | None, step_size: float | None) -> Plain:
    """Threat and step size of an attack; what is not given is the setting's, the step in proportion to epsilon."""
    check_type("norm", norm, str)
    if norm not in setting.step_sizes and (epsilon is None or step_size is None):
        Threat(norm=norm)  # refuses what is no norm
        raise RattleError(f"no setting of {norm} is published: give epsilon and step_size")
    usual_epsilon, usual_step = setting.step_sizes.get(norm, (0.0, 0.0))
    if epsilon is None:
        epsilon = usual_epsilon
    if step_size is None:
        step_size = usual_step if epsilon == usual_epsilon else epsilon * (usual_step / usual_epsilon)
    return {"threat": Threat(norm=norm, epsilon=epsilon), "step_size": step_size}


def short(name: str) -> str:
    """What a run's name says of a dataset or network: a file's own name, or what follows the last colon.

    >>> [short(name) for name in ("pictures/my.npz", "nets/my_net.py:build", "timm:vit_tiny", "cifar10")]
    ['my', 'my_net', 'vit_tiny', 'cifar10']
    """
    name = name.partition(".py:")[0] if ".py:" in name else name.rpartition(":")[2]
    return Path(name).name.removesuffix(".npz")


def fast(recipe: Recipe, setting: Setting) -> Recipe:
    """For people without a cluster: a third of the epochs, half the inner steps (docs/studies/performance.md).

    One cycle of the learning rate up to twice the usual peak, an average of the weights, a larger batch.
    """
    attack = recipe.attack
    return replace(
        recipe,
        attack=replace(attack, steps=attack.steps // 2, step_size=1.6 * attack.step_size),
        awp=replace(recipe.awp, warmup=round(recipe.awp.warmup / 3)) if recipe.awp else None,
        average=EMA(decay=setting.fast_decay),
        optimizer=replace(recipe.optimizer, lr=2 * setting.lr),
        schedule=OneCycle(),
        epochs=round(recipe.epochs / 3),
        batch_size=setting.fast_batch,
        evaluate_every=2,
    )


def released(recipe: Recipe) -> Recipe:
    """As the authors' release runs it, by training/released.py: TRADES + 1st + 2nd and TRADES-AWP + 1st + 2nd.

    Its epochs are counted from 1, so that what begins "at epoch 100" begins after 99; it holds no images out.
    """
    objective, awp, attack, epochs = recipe.objective, recipe.awp, recipe.attack, recipe.epochs
    if type(objective) is not Trades or objective.taylor.order != 2 or isinstance(awp, SAM):
        raise RattleError(
            f"the authors released trades-2nd and trades-awp-2nd, not {recipe.method}: leave out -released"
        )
    if attack.threat.norm == "l2":
        attack = replace(attack, step_size=2 * attack.threat.epsilon / attack.steps)
    if isinstance(awp, AWP):
        awp = replace(awp, warmup=max(awp.warmup - 1, 0))
    return replace(
        recipe,
        objective=Released(taylor=objective.taylor, inv_lambda=objective.inv_lambda),
        noise=Noise(sigma=0 if awp else 1e-4),
        attack=attack,
        awp=awp,
        schedule=Piecewise(drops=tuple((round(drop * epochs) - 1) / epochs for drop in Piecewise().drops)),
        data=replace(recipe.data, val_size=0),
        keep_checkpoints="paper",
        drop_last=False,
    )


def describe_recipe(name: str) -> str:
    """One line about a recipe."""
    recipe, method = get_recipe(name), split_recipe(name)[3]
    threat, paper = recipe.attack.threat, METHODS.entry(split_method(method)[0]).paper
    papers = f"{paper}, {PAPERS[type(recipe.awp)]}" if recipe.awp else paper
    return f"{recipe.method} ({papers}); {ball_text(threat)}, {recipe.epochs} epochs"


def resolve(text: str) -> Recipe:
    """A named recipe, a YAML file, or a run folder that holds one."""
    check_recipe(text)
    path = Path(text)
    if path.is_dir():
        path = path / "recipe.yaml"
    if path.suffix not in (".yaml", ".yml"):
        return get_recipe(text)
    if not path.is_file():
        raise RattleError(f"there is no recipe file {path}")
    try:
        return Recipe.from_yaml(read_text(path))
    except RattleError as reason:
        raise RattleError(f"{path}: {reason}") from reason
