"""A recipe: every hyper-parameter of a run as one frozen value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import yaml

from rattle.attacks import PGD
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.objectives import Objective, Trades
from rattle.objectives.base import HasTeachers, Remembers
from rattle.objectives.registry import objective_kinds
from rattle.recipes.reading import parse_yaml
from rattle.recipes.schedules import CheckpointSchedule, Cosine, OneCycle, Piecewise
from rattle.recipes.schema import OPEN, from_plain, to_plain
from rattle.settings import check_settings
from rattle.weights import ASAM, AWP, EMA, SAM, SWA, Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    lr: float = 0.1  # eta_l, the peak learning rate (paper: 0.1; SVHN 0.01)
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False
    decay_norms: bool = True  # weight decay also on biases and normalisation layers (all with ndim <= 1)
    layer_decay: float | None = None  # factor on the rate from each layer to the one before it; none when not given

    def __post_init__(self) -> None:
        check_optimizer(self)
        if not 0 <= self.momentum < 1:
            raise RattleError(f"optimizer.momentum must be from 0 to below 1, got {self.momentum}")
        if self.nesterov and not self.momentum > 0:
            raise RattleError("optimizer.nesterov does nothing without optimizer.momentum > 0")
        if not self.decay_norms and self.weight_decay == 0:
            raise RattleError("optimizer.decay-norms False does nothing without weight decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), which transformers need."""

    lr: float = 1e-3  # the peak learning rate
    betas: tuple[float, float] = (0.9, 0.999)  # share of the old averages of gradients and of their squares
    eps: float = 1e-8  # added to the denominator
    weight_decay: float = 0.05
    decay_norms: bool = False  # weight decay also on biases and normalisation layers (all with ndim <= 1)
    layer_decay: float | None = None  # factor on the rate from each layer to the one before it; none when not given

    def __post_init__(self) -> None:
        check_optimizer(self)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise RattleError(f"optimizer.betas are two numbers from 0 to below 1, got {self.betas}")
        if not self.eps > 0:
            raise RattleError(f"optimizer.eps must be > 0, got {self.eps}")
        if self.decay_norms and self.weight_decay == 0:
            raise RattleError("optimizer.decay-norms does nothing without weight decay")


def check_optimizer(settings: SGD | AdamW) -> None:
    """Refuse what neither optimizer can do."""
    if not settings.lr > 0:
        raise RattleError(f"optimizer.lr must be > 0, got {settings.lr}")
    if not settings.weight_decay >= 0:
        raise RattleError(f"optimizer.weight-decay must be >= 0, got {settings.weight_decay}")
    if settings.layer_decay is not None and not 0 < settings.layer_decay < 1:
        raise RattleError(f"optimizer.layer-decay must lie between 0 and 1, got {settings.layer_decay}")


MOST = 1_000_000  # epochs, images of a batch and so on: more is a slip, and would overflow somewhere


def check_finite(settings: Any, where: str = "") -> None:
    """Refuse a number in nested settings that is infinite or not a number, and text that no file can hold."""
    for each in fields(settings):
        value, name = getattr(settings, each.name), where + each.name.replace("_", "-")
        if is_dataclass(value):
            check_finite(value, f"{name}.")
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise RattleError(f"{name} must be a finite number, got {number}")
            if isinstance(number, str) and number.encode("utf-8", "replace").decode() != number:
                raise RattleError(f"{name} must be UTF-8 text, got {number!r}: rename the file or folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training run, whole: saved as recipe.yaml in the run folder and inside every checkpoint."""

    name: str = "custom"  # what the run is called in tables
    data: Data = field(default_factory=Data)  # the images
    model: str = "cnn"  # the network's name
    width: int | None = None  # channels of its first stage; the published width when not given
    activation: Literal["relu", "silu"] = "relu"  # of a network of the library's
    normalise: bool = False  # subtract the training images' mean and divide by their deviation, inside the model
    init: str | None = None  # weights, a checkpoint or a run to start from; a head for other classes is left fresh
    head: str | None = None  # name of the linear head; the linear layer whose output are the logits when not given
    attack: PGD = field(default_factory=PGD)  # the inner maximisation
    noise: Noise = field(
        default_factory=Noise
    )  # u on the weights: in the inner maximisation, and in readings that draw it in the outer step
    objective: Objective = field(default_factory=Trades)  # the outer minimisation
    noise_samples: int = 1  # samples of u in the outer step (readings exact, trace and sampled)
    awp: AWP | SAM | ASAM | None = None  # weights moved to where the loss is worse: AWP, or SAM or ASAM in its place
    average: SWA | EMA | None = None  # weight averaging
    ramp: float = 0.0  # fraction of the run in which the inner attack grows, by whole epochs, to its epsilon and step
    optimizer: SGD | AdamW = field(default_factory=SGD)  # of the outer minimisation
    schedule: Piecewise | Cosine | OneCycle = field(default_factory=Piecewise)  # of the learning rate
    epochs: int = 200  # over the training images
    batch_size: int = 128  # n, images in a minibatch
    drop_last: bool = True  # leave out an epoch's last images where they fill no minibatch; kept in the release
    seed: int = 0  # decides initial weights, order of images, augmentation, u and attack noise
    evaluate_every: int = 1  # epochs between evaluations on the held-out images
    val_attack: PGD = field(default_factory=PGD)  # the short attack that chooses the best checkpoint
    keep_checkpoints: CheckpointSchedule | None = (
        None  # also keep checkpoints/epoch-NNN of some epochs, as the paper does
    )
    accumulate: int = 1  # micro-batches of a minibatch, to save memory; BatchNorm, head gradients and AWP see one each
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: forward passes under autocast
    compile: bool = False  # torch.compile the network
    deterministic: bool = False  # only algorithms that give the same bits every time, on GPUs too; slower (scale.md)
    tf32: bool = False  # matrix products in TF32 on NVIDIA GPUs: faster, ten bits of mantissa
    batch_norm: Literal["local", "sync", "held"] = "local"  # statistics: each rank's own | over ranks | not moved
    batch_norm_momentum: float | None = None  # share of a batch in the statistics; the network's own when not given
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    threads: int | None = None  # CPU threads; torch's own choice when not given
    save_minutes: float = 10.0  # wall-clock minutes between checkpoints inside an epoch
    on_divergence: Literal["stop", "rollback"] = "stop"  # rollback: back to the last checkpoint, half the rate

    def __post_init__(self) -> None:
        check_settings(self, "recipe")
        check_finite(self)
        for name in ("epochs", "batch_size", "evaluate_every", "noise_samples", "accumulate", "width", "threads"):
            if (value := getattr(self, name)) is not None and not 1 <= value <= MOST:
                bounds = ">= 1" if value < 1 else f"<= {MOST:,}"
                raise RattleError(f"{name.replace('_', '-')} must be {bounds}, got {value}")
        if self.save_minutes < 0:
            raise RattleError(f"save-minutes must be >= 0, got {self.save_minutes}")
        if not 0 <= self.ramp <= 1:
            raise RattleError(f"ramp is a fraction of the run, from 0 to 1, got {self.ramp}")
        if self.batch_norm_momentum is not None and not 0 < self.batch_norm_momentum <= 1:
            raise RattleError(f"batch-norm-momentum must be > 0 and at most 1, got {self.batch_norm_momentum}")
        if self.average is None and learns_from_average(self.objective):
            raise RattleError(
                f"{self.objective.title} learns from the average of the run's own weights: set --average.kind EMA"
            )
        needs = self.objective.needs
        if self.noise_samples > 1 and not needs.noise:
            raise RattleError("noise-samples > 1 does nothing without objective.taylor.mode exact, trace or sampled")
        if (needs.noise or needs.head_noise) and self.noise.at("outer").sigma == 0:
            raise RattleError(
                "objective.taylor.mode exact, trace, head-noise and sampled are taken along u: "
                "they need noise.sigma or noise.outer > 0"
            )
        if needs.head_noise and self.noise.where != "matrices":
            raise RattleError(f"objective.taylor.mode head-noise: noise.where {self.noise.where} leaves out the head")
        if self.data.augment.mix != "none":
            self.check_soft_labels(f"data.augment.mix {self.data.augment.mix} makes soft labels")
        if self.data.extra is not None and isinstance(self.objective, Remembers):
            raise RattleError(
                f"{self.method} remembers every training image, and extra ones come and go: no data.extra"
            )

    @property
    def replays(self) -> int:
        """Optimizer steps on each minibatch."""
        return getattr(self.objective, "replays", 1)

    def check_soft_labels(self, why: str) -> None:
        """Refuse labels that are rows of probabilities where the objective or its attack needs classes."""
        soft = getattr(self.objective, "soft_labels", False) and not self.objective.needs.features
        if not soft or self.attack.loss == "cw":
            raise RattleError(f"{why}, which {'attack.loss cw' if soft else self.method} cannot take")

    @property
    def method(self) -> str:
        """What tables call the method, such as TRADES-AWP + 1st + 2nd."""
        order = getattr(getattr(self.objective, "taylor", None), "order", 0)
        average = f", {type(self.average).__name__}" if self.average else ""
        moved = f"-{type(self.awp).__name__}" if self.awp else ""
        return f"{self.objective.title}{moved}{ORDERS[order]}{average}"

    def with_seed(self, name: str) -> str:
        """What one run of the recipe is called, by a name that its seeds share."""
        return f"{name}, seed {self.seed}" if self.seed else name

    def steps(self, images: int) -> int:
        """Optimizer steps of an epoch over that many images.

        >>> Recipe().steps(50_000), Recipe(drop_last=False).steps(50_000)
        (390, 391)
        """
        size = min(self.batch_size, images)
        return (images // size if self.drop_last else -(-images // size)) * self.replays

    def to_yaml(self) -> str:
        """The recipe as it stands in every run, its method named for the reader; `from_yaml` reads it."""
        plain = to_plain(self)
        return yaml.safe_dump({"name": plain.pop("name"), "method": self.method, **plain}, sort_keys=False)

    @staticmethod
    def from_yaml(text: str) -> Recipe:
        return from_plain(Recipe, upgraded(parse_yaml(text)))


def learns_from_average(objective: Objective) -> bool:
    teachers = objective.teachers if isinstance(objective, HasTeachers) else {}
    return any(method == "average" for _, method in teachers.values())


ORDERS = ("", " + 1st", " + 1st + 2nd")
RENAMED = {"keep": "keep_checkpoints", "draws": "noise_samples"}  # fields of recipes saved by earlier versions
OPEN[Objective] = objective_kinds


def upgraded(plain: Any) -> Any:
    """A saved recipe in the present form: earlier versions had the Taylor settings among the objective's own.

    `method` is there for readers of the file; it follows from the other settings.
    """
    if not isinstance(plain, dict):
        return plain
    plain = {RENAMED.get(key, key): value for key, value in plain.items() if key != "method"}
    for name, only in {"optimizer": "SGD", "awp": "AWP"}.items():  # there was no other
        if isinstance(settings := plain.get(name), dict) and "kind" not in settings:
            plain[name] = {"kind": only, **settings}
    objective = plain.get("objective")
    if isinstance(objective, dict) and "order" in objective and "taylor" not in objective:
        taylor = {key: objective[key] for key in ("order", "eta", "mode", "second_factor") if key in objective}
        if taylor.get("order", 0) == 0:
            taylor = {}  # they had no effect
        rest = {key: value for key, value in objective.items() if key not in ("order", "eta", "mode", "second_factor")}
        plain["objective"] = {**rest, "taylor": taylor} if taylor else rest
    return plain
