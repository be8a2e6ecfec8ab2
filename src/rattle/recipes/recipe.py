"""A recipe: every hyper-parameter of a run as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import yaml

from rattle.attacks import PGD
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.objectives import AT, Trades
from rattle.recipes.schedules import CheckpointSchedule, Cosine, OneCycle, Piecewise
from rattle.recipes.schema import from_plain, to_plain
from rattle.weights import AWP, EMA, SWA, Noise

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C: every checkpoint holds a recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    lr: float = 0.1  # eta_l, the peak learning rate (paper: 0.1; SVHN 0.01)
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise RattleError(f"optimizer.lr must be > 0, got {self.lr}")


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
    head: str | None = None  # name of the linear head, when it is not the last linear layer
    attack: PGD = field(default_factory=PGD)  # the inner maximisation
    noise: Noise = field(default_factory=Noise)  # u on the weights during the inner maximisation
    objective: AT | Trades = field(default_factory=Trades)  # the outer minimisation
    draws: int = 1  # samples of u in the outer step (modes exact and sampled)
    awp: AWP | None = None  # adversarial weight perturbation
    average: SWA | EMA | None = None  # weight averaging
    optimizer: SGD = field(default_factory=SGD)
    schedule: Piecewise | Cosine | OneCycle = field(default_factory=Piecewise)
    epochs: int = 200
    batch_size: int = 128  # n, images in a minibatch
    seed: int = 0  # decides initial weights, order of images, augmentation, u and attack noise
    evaluate_every: int = 1  # epochs between evaluations on the held-out images
    val_attack: PGD = field(default_factory=PGD)  # the short attack that chooses the best checkpoint
    keep: CheckpointSchedule | None = None  # also keep checkpoints/epoch-NNN of some epochs as the paper does
    accumulate: int = 1  # parts a minibatch is worked off in, to save memory; the update is the whole batch's
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: forward passes under autocast
    compile: bool = False  # torch.compile the network
    batch_norm: Literal["local", "sync", "held"] = "local"  # statistics: each rank's own | over ranks | not moved
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    threads: int | None = None  # CPU threads; torch's own choice when not given
    save_minutes: float = 10.0  # wall-clock minutes between checkpoints inside an epoch
    on_divergence: Literal["stop", "rollback"] = "stop"  # rollback: back to the last checkpoint, half the rate

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "evaluate_every", "draws", "accumulate"):
            if getattr(self, name) < 1:
                raise RattleError(f"{name.replace('_', '-')} must be >= 1, got {getattr(self, name)}")
        if self.draws > 1 and self.objective.mode != "sampled":
            raise RattleError("draws > 1 counts only with objective.mode sampled")
        if self.objective.order and self.objective.mode in ("exact", "sampled") and self.noise.sigma == 0:
            raise RattleError(f"objective.mode {self.objective.mode} looks along u: it needs noise.sigma > 0")

    def to_yaml(self) -> str:
        return yaml.safe_dump(to_plain(self), sort_keys=False)

    @staticmethod
    def from_yaml(text: str) -> Recipe:
        try:
            plain = yaml.load(text, LOADER)
        except yaml.YAMLError as reason:
            raise RattleError(f"the recipe is not valid YAML: {' '.join(str(reason).split())}") from reason
        return from_plain(Recipe, plain)
