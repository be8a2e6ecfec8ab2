"""A recipe: every hyper-parameter of a run as one frozen value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import yaml

from rattle.attacks import PGD
from rattle.data.registry import Data
from rattle.errors import RattleError, check_choices
from rattle.objectives import Objective, Trades
from rattle.objectives.registry import objective_kinds
from rattle.recipes.reading import parse_yaml
from rattle.recipes.schedules import CheckpointSchedule, Cosine, OneCycle, Piecewise
from rattle.recipes.schema import OPEN, from_plain, to_plain
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
        value, name = getattr(settings, each.name), f"{where}{each.name.replace('_', '-')}"
        if is_dataclass(value):
            check_finite(value, f"{name}.")
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
    activation: Literal["relu", "silu"] = "relu"
    normalise: bool = False  # subtract the training images' mean and divide by their deviation, inside the model
    init: str | None = None  # weights, a checkpoint or a run to start from; a head for other classes is left fresh
    head: str | None = None  # name of the linear head; the linear layer whose output are the logits when not given
    attack: PGD = field(default_factory=PGD)  # the inner maximisation
    noise: Noise = field(default_factory=Noise)  # u on the weights during the inner maximisation
    objective: Objective = field(default_factory=Trades)  # the outer minimisation
    noise_samples: int = 1  # samples of u in the outer step (reading sampled)
    awp: AWP | SAM | ASAM | None = None  # weights moved to where the loss is worse: AWP, or SAM or ASAM in its place
    average: SWA | EMA | None = None  # weight averaging
    optimizer: SGD | AdamW = field(default_factory=SGD)
    schedule: Piecewise | Cosine | OneCycle = field(default_factory=Piecewise)
    epochs: int = 200
    batch_size: int = 128  # n, images in a minibatch
    seed: int = 0  # decides initial weights, order of images, augmentation, u and attack noise
    evaluate_every: int = 1  # epochs between evaluations on the held-out images
    val_attack: PGD = field(default_factory=PGD)  # the short attack that chooses the best checkpoint
    keep_checkpoints: CheckpointSchedule | None = (
        None  # also keep checkpoints/epoch-NNN of some epochs, as the paper does
    )
    accumulate: int = 1  # micro-batches of a minibatch, to save memory; BatchNorm, head gradients and AWP see one each
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: forward passes under autocast
    compile: bool = False  # torch.compile the network
    batch_norm: Literal["local", "sync", "held"] = "local"  # statistics: each rank's own | over ranks | not moved
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    threads: int | None = None  # CPU threads; torch's own choice when not given
    save_minutes: float = 10.0  # wall-clock minutes between checkpoints inside an epoch
    on_divergence: Literal["stop", "rollback"] = "stop"  # rollback: back to the last checkpoint, half the rate

    def __post_init__(self) -> None:
        check_choices(self, "recipe")
        check_finite(self)
        for name in ("epochs", "batch_size", "evaluate_every", "noise_samples", "accumulate", "width", "threads"):
            if (value := getattr(self, name)) is not None and not 1 <= value <= MOST:
                bounds = ">= 1" if value < 1 else f"<= {MOST:,}"
                raise RattleError(f"{name.replace('_', '-')} must be {bounds}, got {value}")
        if self.save_minutes < 0:
            raise RattleError(f"save-minutes must be >= 0, got {self.save_minutes}")
        if self.noise_samples > 1 and not self.objective.needs.sampled:
            raise RattleError("noise-samples > 1 does nothing without objective.taylor.mode sampled")
        if self.objective.needs.noise and self.noise.sigma == 0:
            raise RattleError("objective.taylor.mode exact and sampled are taken along u: they need noise.sigma > 0")

    @property
    def method(self) -> str:
        """What tables call the method, such as TRADES-AWP + 1st + 2nd."""
        order = getattr(getattr(self.objective, "taylor", None), "order", 0)
        average = f", {type(self.average).__name__}" if self.average else ""
        moved = f"-{type(self.awp).__name__}" if self.awp else ""
        return f"{self.objective.title}{moved}{ORDERS[order]}{average}"

    def to_yaml(self) -> str:
        plain = to_plain(self)
        return yaml.safe_dump({"name": plain.pop("name"), "method": self.method, **plain}, sort_keys=False)

    @staticmethod
    def from_yaml(text: str) -> Recipe:
        return from_plain(Recipe, upgraded(parse_yaml(text)))


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
