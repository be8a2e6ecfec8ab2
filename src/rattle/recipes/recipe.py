"""A recipe: every hyper-parameter of a run as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import yaml

from rattle.attacks import PGD
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.objectives import Objective, Trades
from rattle.objectives.registry import objective_kinds
from rattle.objectives.taylor_terms import PUBLISHED_ETA
from rattle.recipes.reading import parse_yaml
from rattle.recipes.schedules import Cosine, KeptEpochs, OneCycle, Piecewise
from rattle.recipes.schema import OPEN, from_plain, to_plain
from rattle.settings import BelowOne, Between, Count, NonNegative, Positive, PositiveShare, Share, check_settings
from rattle.weights import ASAM, AWP, EMA, SAM, SWA, Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    lr: Positive = 0.1  # eta_l, the peak learning rate (paper: 0.1; SVHN 0.01)
    momentum: BelowOne = 0.9
    weight_decay: NonNegative = 5e-4
    nesterov: bool = False
    decay_norms: bool = True  # weight decay also on biases and normalisation layers (all with ndim <= 1)
    layer_decay: Between | None = None  # factor on the rate from each layer to the one before it; none when not given

    def __post_init__(self) -> None:
        check_settings(self, "optimizer")
        if self.nesterov and self.momentum == 0:
            raise RattleError("optimizer.nesterov does nothing without optimizer.momentum > 0")
        if not self.decay_norms and self.weight_decay == 0:
            raise RattleError("optimizer.decay_norms False does nothing without weight decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), which transformers need."""

    lr: Positive = 1e-3  # the peak learning rate
    weight_decay: NonNegative = 0.05
    decay_norms: bool = False  # weight decay also on biases and normalisation layers (all with ndim <= 1)
    layer_decay: Between | None = None  # factor on the rate from each layer to the one before it; none when not given

    def __post_init__(self) -> None:
        check_settings(self, "optimizer")
        if self.decay_norms and self.weight_decay == 0:
            raise RattleError("optimizer.decay_norms does nothing without weight decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValAttack:
    """The attack on held-out images: PGD on the cross-entropy from a uniform start, of the inner attack's threat."""

    steps: Count = 10
    step_size: NonNegative = 2 / 255

    def __post_init__(self) -> None:
        check_settings(self, "val_attack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All settings of one training run, saved as recipe.yaml in the run folder and inside every checkpoint."""

    name: str = "custom"  # what the run is called in tables
    data: Data = field(default_factory=Data)  # the images
    model: str = "cnn"  # the network's name
    width: Count | None = None  # channels of its first stage; the published width when not given
    activation: Literal["relu", "silu"] = "relu"  # activation of a network of the library
    normalise: bool | tuple[float, ...] = (
        False  # inside the model: by the training images' means and stds | by these, means first
    )
    init: str | None = None  # weights, a checkpoint or a run to start from; a head for other classes is not loaded
    head: str | None = None  # name of the linear head; found automatically when not given
    attack: PGD = field(default_factory=PGD)  # the inner maximisation
    noise: Noise = field(default_factory=Noise)  # noise u in the inner step, and in modes that draw it again
    objective: Objective = field(default_factory=Trades)  # the outer minimisation
    noise_samples: Count = 1  # samples of u in the outer step (modes that draw it there)
    awp: AWP | SAM | ASAM | None = None  # adversarial weights: AWP, or SAM or ASAM in its place
    average: SWA | EMA | None = None  # weight averaging
    ramp: Share = 0.0  # fraction of the run in which the inner attack grows, by whole epochs, to its epsilon and step
    optimizer: SGD | AdamW = field(default_factory=SGD)  # optimizer of the outer minimisation
    schedule: Piecewise | Cosine | OneCycle = field(default_factory=Piecewise)  # learning rate over the run
    epochs: Count = 200  # passes over the training images
    batch_size: Count = 128  # images in a minibatch, of all ranks together
    drop_last: bool = True  # leave out an epoch's last images if they fill no minibatch; the release keeps them
    seed: int = 0  # decides initial weights, order of images, augmentation, u and attack noise
    evaluate_every: Count = 1  # epochs between evaluations on the held-out images
    val_attack: ValAttack = field(default_factory=ValAttack)  # the short attack that chooses the best checkpoint
    keep_checkpoints: KeptEpochs = "none"  # keep checkpoints/epoch-NNN too: of the paper's epochs, or of all
    accumulate: Count = (
        1  # micro-batches of a minibatch, to save memory; BatchNorm, head gradients and AWP see one each
    )
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"  # tf32: matrix products on NVIDIA GPUs | bf16: autocast
    compile: bool = False  # torch.compile the network
    deterministic: bool = False  # only algorithms that give the same bits every time, on GPUs too; slower
    batch_norm: Literal["local", "sync", "held"] = "local"  # statistics: each rank's own | over ranks | not moved
    batch_norm_momentum: PositiveShare | None = (
        None  # weight of a batch in the running statistics; the network's own when not given
    )
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    threads: Count | None = None  # CPU threads; torch's own choice when not given
    save_minutes: NonNegative = 10.0  # wall-clock minutes between checkpoints inside an epoch

    def __post_init__(self) -> None:
        check_settings(self, "")
        if self.average is None and any(method == "average" for _, method in self.objective.teachers.values()):
            raise RattleError(
                f"{self.objective.title} learns from the average of the run's own weights: set --average.kind EMA"
            )
        if isinstance(self.normalise, tuple):
            half = len(self.normalise) // 2
            if len(self.normalise) != 2 * half or not all(std > 0 for std in self.normalise[half:]):
                raise RattleError(f"normalise takes a mean and then a std > 0 for each channel, got {self.normalise}")
        if self.attack.threat.norm not in self.objective.norms:
            allowed = " or ".join(self.objective.norms)
            raise RattleError(
                f"{self.objective.title} needs attack.threat.norm {allowed}, got {self.attack.threat.norm}"
            )
        needs = self.objective.needs
        if self.noise_samples > 1 and needs.draw is None:
            raise RattleError("noise_samples > 1 does nothing without objective.taylor.mode exact or sampled")
        if needs.draw is not None and self.noise.sigma == 0:
            raise RattleError("this objective.taylor.mode is taken along u: it needs noise.sigma > 0")
        soft = self.objective.soft_labels and not needs.features
        if self.data.augment.mix != "none" and (not soft or self.attack.loss == "cw"):
            taker = "attack.loss cw" if soft else self.method
            raise RattleError(f"data.augment.mix {self.data.augment.mix} makes soft labels, which {taker} cannot take")
        if (self.data.extra is not None or self.data.balanced) and self.objective.remembers_images:
            raise RattleError(
                f"{self.method} remembers every training image once an epoch: no data.extra and no data.balanced"
            )

    def refuse_idle(self) -> Recipe:
        """The recipe; raises RattleError for a changed setting that has no effect with the others.

        Called before a run begins, not when a recipe is made, so that runs of earlier versions with one still open.
        """
        objective, needs, noise = self.objective, self.objective.needs, self.noise
        taylor = getattr(objective, "taylor", None)
        own_eta = taylor is not None and taylor.eta not in (None, PUBLISHED_ETA.get(taylor.order))
        if taylor is not None and own_eta and not taylor.reading.weighted:
            why = f"mode {taylor.mode} averages the method's own terms over u"
            raise idle("objective.taylor.eta", taylor.eta, why)
        if self.head is not None and not needs.features:
            raise idle("head", self.head, "only the Taylor terms of mode head use the network's head")
        if noise.inner is not None and needs.draw is None:
            raise idle("noise.inner", noise.inner, "no u enters the outer step of this recipe: set noise.sigma")
        if noise.scale != "absolute" and noise.sigma == 0:
            raise idle("noise.scale", noise.scale, "noise.sigma is 0")
        for name in ("loss", "start", "restarts"):  # the steps and their size follow from the dataset and -fast
            value = getattr(self.attack, name)
            if name in objective.unused and value != getattr(PGD(), name):
                raise idle(f"attack.{name}", value, f"{objective.title} has an inner attack of its own")
        if self.awp and self.awp.warmup >= self.epochs:
            why = f"{type(self.awp).__name__} would never begin in {self.epochs} epochs: set a shorter awp.warmup"
            raise idle("awp.warmup", self.awp.warmup, why)
        if self.batch_norm_momentum is not None and self.batch_norm == "held":
            raise idle("batch_norm_momentum", self.batch_norm_momentum, "batch_norm held does not move the statistics")
        if self.data.extra is None and self.data.extra_fraction is not None:
            why = "it needs images to draw, generated or others: give them with --data.extra FILE.npz"
            raise idle("data.extra_fraction", self.data.extra_fraction, why)
        if self.evaluate_every > self.epochs:
            raise idle("evaluate_every", self.evaluate_every, f"the run has {self.epochs} epochs")
        return self

    @property
    def validation_attack(self) -> PGD:
        """The attack on the held-out images, which chooses the best checkpoint."""
        return PGD(threat=self.attack.threat, steps=self.val_attack.steps, step_size=self.val_attack.step_size)

    @property
    def validation_attacks(self) -> dict[str, PGD]:
        """By metric. With smoothed labels the margin is attacked too, and the lower accuracy counts."""
        attacks = {"val_robust": self.validation_attack}
        if self.objective.smooths_labels:
            attacks["val_margin"] = replace(self.validation_attack, loss="cw")
        return attacks

    @property
    def replays(self) -> int:
        """Optimizer steps on each minibatch."""
        return self.objective.replays

    @property
    def method(self) -> str:
        """What tables call the method, such as TRADES-AWP + 1st + 2nd."""
        order = getattr(getattr(self.objective, "taylor", None), "order", 0)
        average = f", {type(self.average).__name__}" if self.average else ""
        moved = f"-{type(self.awp).__name__}" if self.awp else ""
        return f"{self.objective.title}{moved}{ORDER_TITLES[order]}{average}"

    def with_seed(self, name: str) -> str:
        """The name of a run: the name shared by its seeds, and the seed."""
        return f"{name}, seed {self.seed}" if self.seed else name

    def steps(self, images: int) -> int:
        """Optimizer steps of an epoch over that many images.

        >>> Recipe().steps(50_000), Recipe(drop_last=False).steps(50_000)
        (390, 391)
        """
        size = min(self.batch_size, images)
        return (images // size if self.drop_last else -(-images // size)) * self.replays

    def to_yaml(self) -> str:
        """The recipe as every run stores it, with the title of its method; `from_yaml` reads it."""
        plain = to_plain(self)
        return yaml.safe_dump({"name": plain.pop("name"), "method": self.method, **plain}, sort_keys=False)

    @staticmethod
    def from_yaml(text: str, *, to_open: bool = False) -> Recipe:
        """The recipe of a YAML text, also of an earlier version; to_open: see `saved.upgraded`."""
        from rattle.recipes.saved import upgraded

        return from_plain(Recipe, upgraded(parse_yaml(text), to_open=to_open))


def idle(name: str, value: object, why: str) -> RattleError:
    return RattleError(f"{name} {value} does nothing: {why}")


ORDER_TITLES = ("", " + 1st", " + 1st + 2nd")
OPEN[Objective] = objective_kinds
