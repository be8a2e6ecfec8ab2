"""What an objective is: it says what it needs of the model and returns named terms whose sum is the loss.

A method adds a file with a frozen dataclass that follows `Objective` and a `Method` that names it, and one line in
registry.py. Recipes, the names in tables and the report come from there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs, Pairs
from rattle.weights import AWP

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


def check_weights(objective: object, *names: str) -> None:
    """Refuse weights of terms that are negative or no numbers."""
    for name in names:
        if not getattr(objective, name) >= 0:
            raise RattleError(f"objective.{name} must be >= 0, got {getattr(objective, name)}")


def check_fractions(objective: object, *names: str) -> None:
    """Refuse shares that leave nothing of one side."""
    for name in names:
        if not 0 < getattr(objective, name) < 1:
            raise RattleError(f"objective.{name} must lie between 0 and 1, got {getattr(objective, name)}")


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
    length: float = 1.0  # epochs over those that are usual for the dataset, 200 for the paper's
    drops: tuple[float, ...] = (0.5, 0.75)  # fractions of the run at which the learning rate drops
