"""What an objective is: it says what it needs of the model and returns named terms whose sum is the loss.

A method adds a file with a frozen dataclass that follows `Objective` and a `Method` of it, and one line in registry.py
with its name, summary and paper. Recipes, the names in tables and the report come from there.

What few methods need is optional: the classes from `ChangesOverTime` on each describe one method or property that an
objective may have besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rattle.attacks import PGD, Attack
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs, Pairs
from rattle.randomness import ImageStreams
from rattle.settings import check_settings
from rattle.weights import AWP, EMA, SWA

Reduce = Callable[[Tensor], Tensor]  # the average of a tensor over ranks


def unreduced(values: Tensor) -> Tensor:
    """The average over one process."""
    return values


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss: the sum of its named terms."""
    return torch.stack(tuple(terms.values())).sum()


def averaged(terms_at: Callable[[Tensor, Tensor], dict[str, Tensor]], pairs: Pairs) -> dict[str, Tensor]:
    """Each term's mean over pairs of logits: over draws of u, see `Outputs.pairs`."""
    draws = [terms_at(z, z_adv) for z, z_adv in pairs]
    return {name: torch.stack([terms[name] for terms in draws]).mean() for name in draws[0]}


def mixed_terms(
    objective: Callable[..., dict[str, Tensor]],
    outputs: Outputs,
    y: Tensor,
    *,
    share: float,
    reduce: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict,
) -> dict[str, Tensor]:
    """An objective's terms, of which the `share` is taken at w + u and the rest at w (m-RWP, Li et al. 2024).

    `reduce` averages tensors over ranks.
    """
    terms_of = partial(objective, y=y, reduce=lambda rows: reduce({"rows": rows})["rows"])
    terms = terms_of(outputs)
    if share == 1:
        return terms
    at_w = terms_of(replace(outputs, sampled=()))
    return {name: share * value + (1 - share) * at_w[name] for name, value in terms.items()}


def label_rows(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Labels as rows of probabilities, [n, C]; soft ones are that already."""
    return (y if y.ndim == 2 else nn.functional.one_hot(y, classes)).to(dtype)


def check_weights(objective: object, *names: str) -> None:
    """Refuse weights of terms that are negative or no numbers."""
    check_settings(objective, "objective")
    for name in names:
        if not getattr(objective, name) >= 0:
            raise RattleError(f"objective.{name} must be >= 0, got {getattr(objective, name)}")


def check_fractions(objective: object, *names: str) -> None:
    """Refuse shares that leave nothing of one side."""
    for name in names:
        if not 0 < getattr(objective, name) < 1:
            raise RattleError(f"objective.{name} must lie between 0 and 1, got {getattr(objective, name)}")


class Objective(Protocol):
    """The outer minimisation. Implemented by frozen dataclasses, whose fields are the settings in a recipe.

    A class attribute `soft_labels = True` says that it takes rows of probabilities [n, C] for y: images may be mixed.
    """

    title: ClassVar[str]  # what tables call the method

    @property
    def needs(self) -> ForwardSpec:
        """What the forward passes have to provide."""
        ...

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        """Named terms, each a scalar. `reduce` averages statistics of the batch (head gradients) over ranks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A training method: its objective, the inner attack that goes with it, and what its paper trains with."""

    objective: Objective  # with the published settings
    attack: PGD  # the inner maximisation; a recipe sets its threat and step size
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
    """What an objective remembers of each training image from epoch to epoch, seen from the images of one batch."""

    def __init__(self, tensors: Mapping[str, Tensor], rows: Tensor) -> None:
        """tensors: by name, a row for each training image (those of `RemembersClasses` are read and written whole, in
        `tensors`); rows: the images of this batch."""
        self.tensors, self.rows = tensors, rows

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name][self.rows]

    def __setitem__(self, name: str, values: Tensor) -> None:
        self.tensors[name][self.rows] = values.detach().to(self.tensors[name].dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step knows besides its images."""

    moment: Moment
    draws: ImageStreams  # random numbers for each image
    memory: Memory
    classes: int = 0  # C, for soft labels
    teachers: Mapping[str, nn.Module] = field(default_factory=dict)  # for an inner attack that asks them
    place: int = 0  # of the first image in its minibatch, of which ranks and micro-batches have consecutive parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the outer minimisation looks at."""

    x: Tensor
    x_adv: Tensor
    y: Tensor  # classes [n], or soft labels: rows of probabilities [n, C]
    extra: Tensor | None = None  # further images, whose logits the objective gets as `Outputs.extra`


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A network to learn from."""

    model: str | None = None  # its network's name; the student's own network when not given
    width: int | None = None  # channels of its first stage, where model is given
    weights: str | None = None  # a run, a checkpoint or zoo:NAME; trained first, or along, when not given

    def __post_init__(self) -> None:
        if self.width is not None and self.model is None:
            raise RattleError(f"a teacher's width {self.width} does nothing without its model")
        if self.weights is not None and self.model is not None:
            raise RattleError(
                f"a teacher's model {self.model} does nothing: its weights {self.weights} say which it is"
            )


@runtime_checkable
class ChangesOverTime(Protocol):
    """An objective whose settings depend on where the run is."""

    def at(self, moment: Moment) -> Objective: ...


@runtime_checkable
class HasInnerAttack(Protocol):
    """An objective with an inner maximisation of its own, made from the recipe's threat, steps and step size.

    A class attribute `unused` may name the settings of the recipe's attack that it has no use for.
    """

    def inner_attack(self, attack: PGD, context: StepContext) -> Attack: ...


@runtime_checkable
class CountsPasses(Protocol):
    """An objective whose inner attack goes through the network more or less often than the recipe's steps say."""

    def inner_passes(self, steps: int) -> tuple[int, int]:
        """Forward and backward passes of an inner attack, at most: what estimates of time are made of."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """An objective that mixes images, softens labels or adds points before the outer minimisation."""

    def prepare(self, batch: Batch, context: StepContext) -> Batch: ...


@runtime_checkable
class Remembers(Protocol):
    """An objective that remembers something of each image; it is saved and resumed with the run."""

    def initial_memory(self, images: int) -> dict[str, Tensor]:
        """By name, a tensor with a row for each training image."""
        ...


@runtime_checkable
class RemembersClasses(Protocol):
    """An objective that remembers something of the classes, the same on every rank; saved and resumed likewise."""

    def initial_class_memory(self, classes: int) -> dict[str, Tensor]:
        """By name, a tensor of any shape."""
        ...

    def remember(self, outputs: Outputs, y: Tensor, context: StepContext, *, reduce: Reduce) -> None:
        """Called once a step with what the loss was computed from; `reduce` makes the ranks agree."""
        ...


@runtime_checkable
class RemembersPlaces(Protocol):
    """An objective that carries something from step to step for each place of a minibatch; saved and resumed likewise.

    An attribute `replays` says how many steps in a row have the same minibatch.
    """

    def initial_place_memory(self, batch: torch.Size) -> dict[str, Tensor]:
        """By name, a tensor with a row for each place; batch: [B, C, H, W] of a minibatch."""
        ...


@runtime_checkable
class UsesContext(Protocol):
    """An objective whose terms depend on what it remembers: in a run, `terms_in` is called in its place."""

    def terms_in(
        self, context: StepContext, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced
    ) -> dict[str, Tensor]: ...


@runtime_checkable
class HasTeachers(Protocol):
    """An objective that learns from other networks too; `needs` says where it wants their logits."""

    @property
    def teachers(self) -> Mapping[str, tuple[Teacher, str]]:
        """By name: which network, and the method by which it is trained first where it has no weights; "along": it
        is trained by this objective together with the model, saved and resumed with it; "average": it is the average
        of the run's own weights, whose logits are missing until the recipe's `average` has begun."""
        ...


ONE_STEP = ("steps", "step_size", "loss", "start", "restarts")  # unused by an attack with one step of its own


class TermsNow:
    """An objective as the step calls it, at one step of a run."""

    def __init__(self, objective: Objective, context: StepContext) -> None:
        self.objective, self.context, self.last = objective, context, None

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        self.last = outputs, y, reduce
        if isinstance(self.objective, UsesContext):
            return self.objective.terms_in(self.context, outputs, y, reduce=reduce)
        return self.objective(outputs, y, reduce=reduce)

    def remember(self) -> None:
        """Let the objective write down what it remembers of the classes; the last call was the one that counts."""
        if isinstance(self.objective, RemembersClasses) and self.last is not None:
            outputs, y, reduce = self.last
            self.objective.remember(outputs, y, self.context, reduce=reduce)


def same(batch: Batch) -> Batch:
    """The batch as it is."""
    return batch


def now(objective: Objective, attack: PGD, context: StepContext) -> tuple[TermsNow, Attack, Callable[[Batch], Batch]]:
    """The objective, its inner attack and its preparation of a batch, at one step of a run."""
    if isinstance(objective, ChangesOverTime):
        objective = objective.at(context.moment)
    inner = objective.inner_attack(attack, context) if isinstance(objective, HasInnerAttack) else attack
    prepare = partial(objective.prepare, context=context) if isinstance(objective, Prepares) else same
    return TermsNow(objective, context), inner, prepare
