"""What an objective is: it says what it needs of the model and returns named terms whose sum is the loss.

A method adds a file with a frozen dataclass that follows `Objective` and a `Method` that names it, and one line in
registry.py. Recipes, the names in tables and the report come from there.

What few methods need is optional: the classes from `ChangesOverTime` on each describe one method or property that an
objective may have besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from rattle.attacks import PGD, Attack
from rattle.forward import ForwardSpec, Outputs
from rattle.randomness import ImageStreams
from rattle.weights import AWP, EMA, SWA

Reduce = Callable[[Tensor], Tensor]  # the average of a tensor over ranks


def unreduced(values: Tensor) -> Tensor:
    """The average over one process."""
    return values


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss: the sum of its named terms."""
    return torch.stack(tuple(terms.values())).sum()


class Objective(Protocol):
    """The outer minimisation. Implemented by frozen dataclasses, whose fields are the settings in a recipe."""

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
    """A training method as recipes name it: its objective, the inner attack that goes with it, and its source."""

    name: str  # in the names of recipes, such as trades
    objective: Objective  # with the published settings
    attack: PGD  # the inner maximisation; a recipe sets its threat and step size
    paper: str  # whose method it is
    awp: AWP | None = None  # the published settings of AWP on this base (recipes NAME-awp); None: there are none
    average: SWA | EMA | None = None  # the average of the weights that belongs to it
    rate_factor: float = 0.1  # what the learning rate is multiplied by at each drop
    ramp: float = 0.0  # fraction of the run in which the inner attack grows to its epsilon


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

    model: str | None = None  # its name; the student's own network when not given
    width: int | None = None  # of its first stage, when it has a name of its own
    weights: str | None = None  # a run, a checkpoint or zoo:NAME; trained first, or along, when not given


@runtime_checkable
class ChangesOverTime(Protocol):
    """An objective whose settings depend on where the run is."""

    def at(self, moment: Moment) -> Objective: ...


@runtime_checkable
class HasInnerAttack(Protocol):
    """An objective with an inner maximisation of its own, made from the recipe's threat, steps and step size.

    Settings that it leaves aside may be named in a class variable `unused`, such as ("attack.step-size",).
    """

    def inner_attack(self, attack: PGD, context: StepContext) -> Attack: ...


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
