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
from rattle.forward import ForwardSpec, Outputs
from rattle.weights import AWP

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
