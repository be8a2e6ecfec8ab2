"""What an objective is: it says what it needs of the model and returns named terms whose sum is the loss.

A method is a file with a frozen dataclass that inherits from `Objective` and a `Method` of it, and one line in
registry.py with its name, summary and paper. `terms` is all that has to be written: what only few methods need has a
default that they override.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.randomness import ImageStreams
from rattle.settings import check_settings
from rattle.threat import Norm
from rattle.weights import AWP, EMA, SWA, Tensors

Terms = dict[str, Tensor]  # by name, each a scalar
InnerAttack = Callable[..., Tensor]  # called as an Attack is: (model, x, y, *, generator) -> x_adv
ONE_STEP = ("steps", "step_size", "loss", "start", "restarts")  # `unused` of an attack with one step of its own


def total(terms: Tensors) -> Tensor:
    """The loss: the sum of its named terms."""
    return torch.stack(tuple(terms.values())).sum()


def label_rows(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Labels as rows of probabilities, [n, C]; soft ones are that already."""
    return (y if y.ndim == 2 else nn.functional.one_hot(y, classes)).to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where a run is."""

    epoch: int = 0  # under way, from 0
    epochs: int = 1  # of the whole run
    step: int = 0  # optimizer steps done

    @property
    def fraction(self) -> float:
        """Of the run, by whole epochs."""
        return self.epoch / self.epochs


class Memory:
    """The state of an objective (`Objective.state`), seen from the images of one batch.

    Indexed by name it is the rows of these images; a tensor without a row for each image is in `tensors`.
    """

    def __init__(self, tensors: Tensors, rows: Tensor) -> None:
        self.tensors, self.rows = tensors, rows

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name][self.rows]

    def __setitem__(self, name: str, values: Tensor) -> None:
        self.tensors[name][self.rows] = values.detach().to(self.tensors[name].dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step knows besides its images."""

    moment: Moment = Moment()
    draws: ImageStreams = field(default_factory=lambda: ImageStreams(0, torch.arange(0)))  # one stream for each image
    memory: Memory = field(default_factory=lambda: Memory({}, torch.arange(0)))
    classes: int = 0  # C, for soft labels
    teachers: Mapping[str, nn.Module] = field(default_factory=dict)  # for an inner attack that queries them
    place: int = 0  # of the first image in its minibatch: ranks and micro-batches have consecutive parts
    reduce: Callable[[Tensors], Tensors] = dict  # averages named tensors over ranks

    def mean(self, statistic: Tensor) -> Tensor:
        """A statistic of the batch, averaged over ranks: N ranks compute what one process would."""
        return self.reduce({"statistic": statistic})["statistic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The images and labels of the outer minimisation."""

    x: Tensor
    x_adv: Tensor
    y: Tensor  # classes [n], or soft labels: rows of probabilities [n, C]
    extra: Tensor | None = None  # further images, whose logits the objective gets as `Outputs.extra`


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A network to learn from."""

    model: str | None = None  # its network's name; the student's own network when not given
    width: int | None = None  # channels of its first stage, where model is given
    weights: str | None = None  # a run, a checkpoint or zoo:NAME; trained first, or cotrained, when not given

    def __post_init__(self) -> None:
        if self.width is not None and self.model is None:
            raise RattleError(f"a teacher's width {self.width} does nothing without its model")
        if self.weights is not None and self.model is not None:
            raise RattleError(f"a teacher's model {self.model} does nothing: its weights {self.weights} determine it")


Teachers = Mapping[str, tuple[Teacher, str]]  # by name: a network, and the method that trains it


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The outer minimisation. The fields of the frozen dataclasses that inherit from it are settings of a recipe."""

    title: ClassVar[str] = ""  # what tables call the method
    soft_labels: ClassVar[bool] = False  # takes rows of probabilities [n, C] for y: images may be mixed
    unused: ClassVar[tuple[str, ...]] = ()  # settings of the recipe's attack that it has no use for
    norms: ClassVar[tuple[Norm, ...]] = ("linf", "l2", "l1")  # that the recipe's attack may have
    trade_off: ClassVar[str] = "attack.threat.epsilon"  # the setting that trades clean for robust accuracy
    replays: ClassVar[int] = 1  # optimizer steps on each minibatch
    needs_run: ClassVar[bool] = False  # its terms need teachers, a state, or images that it prepares
    remembers_images: ClassVar[bool] = False  # its state has a row for each training image
    smooths: ClassVar[bool] = False  # it learns from soft labels of its own
    uses: ClassVar[ForwardSpec] = ForwardSpec()  # what its own terms are computed from: the logits at x and x'

    def __post_init__(self) -> None:
        check_settings(self, "objective")

    @property
    def needs(self) -> ForwardSpec:
        """What the forward passes have to provide."""
        return self.uses

    @property
    def smooths_labels(self) -> bool:
        """Whether it learns from soft labels, which mislead an attack on the cross-entropy."""
        return self.smooths

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        """Named terms whose sum is the loss."""
        raise NotImplementedError

    def __call__(self, outputs: Outputs, y: Tensor) -> Terms:
        """The terms outside of a run."""
        return self.terms(outputs, y, StepContext())

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        """The inner maximisation: the recipe's attack, or one made of its threat, steps and step size."""
        return pgd

    def prepare(self, batch: Batch, context: StepContext) -> Batch:
        """The images of the outer minimisation: mixed, with soft labels, or with further ones."""
        return batch

    def state(self, *, images: int, classes: int, batch: torch.Size) -> Tensors:
        """What it remembers from step to step, by name, as a run begins; saved and resumed with the run.

        A tensor has a row for each training image, a row for each place of a minibatch (batch: [B, C, H, W]), or any
        shape and the same values on every rank.
        """
        return {}

    def remember(self, outputs: Outputs, y: Tensor, context: StepContext) -> None:
        """Update the state from what the loss was computed from; called once in a step, after the gradient."""

    @property
    def teachers(self) -> Teachers:
        """By name: a network to learn from, and the method that trains it first where it has no weights.

        Instead of a method's name, "cotrained": trained by this objective together with the model, saved and resumed
        with it; "average": the average of the run's own weights, whose logits are missing until it begins.
        """
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign(Objective):
    """An objective that is not registered here: a run of it opens and is evaluated, but is not trained."""

    soft_labels: ClassVar[bool] = True  # so that no setting of its run is refused
    needs_run: ClassVar[bool] = True
    name: str = ""  # of its class

    @property
    def title(self) -> str:  # type: ignore[override]
        return self.name

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        raise RattleError(f"the objective {self.name} is not known here: give the file that registers it as --plugin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A training method: its objective, its inner attack, and the settings of its paper."""

    objective: Objective  # with the published settings
    attack: PGD = PGD()  # the inner maximisation, on the cross-entropy if not said; recipes set threat and step size
    awp: AWP | None = None  # the published settings of AWP on this base (recipes NAME-awp); None: there are none
    length: float = 1.0  # epochs over those that are usual for the dataset, 200 for the paper's
    drops: tuple[float, ...] = (0.5, 0.75)  # fractions of the run at which the learning rate drops
    rate_factor: float = 0.1  # what the learning rate is multiplied by at each drop
    average: SWA | EMA | None = None  # the average of the weights that belongs to it
    ramp: float = 0.0  # fraction of the run in which the inner attack grows to its epsilon
    batch_size: int = 128  # images in a minibatch; fewer where the dataset has few, and the learning rate in proportion
    rate: float = 1.0  # learning rate over the one that is usual for the dataset, 0.1 for the paper's
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # further ones of a recipe, as in its YAML, by dotted name
