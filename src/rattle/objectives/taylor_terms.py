"""The paper's contribution as a part of an objective: the first- and second-order Taylor terms, in any reading."""

from dataclasses import dataclass, replace
from typing import Annotated

from torch import Tensor

from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.objectives.base import Objective, StepContext, Terms
from rattle.objectives.readings import READINGS, Reading
from rattle.settings import Bound, NonNegative, check_settings

PUBLISHED_ETA = {1: 0.3, 2: 0.2}  # the paper's best for each order (Table 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taylor:
    """eta first + (eta/2) second (Algorithm 1, outer minimisation); order 0 adds nothing."""

    order: Annotated[int, Bound(least=0, most=2)] = 0  # terms used: 0 (none), 1 (first), 2 (first and second)
    eta: NonNegative | None = None  # weight of the first term; the paper's when not given: 0.3 at order 1, 0.2 at 2
    mode: str = "head"  # how the terms are computed: head | smoothing | exact | sampled

    def __post_init__(self) -> None:
        check_settings(self, "objective.taylor")
        if self.order == 0:
            if (self.eta, self.mode) != (None, "head"):
                raise RattleError("objective.taylor does nothing at order 0: set objective.taylor.order to 1 or 2")
            return
        READINGS.entry(self.mode)  # refuses a mistyped one
        if self.order not in self.reading.orders:
            raise RattleError(f"objective.taylor.mode {self.mode} has no terms of order {self.order}")

    @property
    def reading(self) -> Reading:
        return READINGS[self.mode]

    @property
    def weight(self) -> float:
        """eta, with the paper's value filled in."""
        return PUBLISHED_ETA.get(self.order, 0.0) if self.eta is None else self.eta

    def needs(self, own: ForwardSpec) -> ForwardSpec:
        """What the forward passes have to provide; own: what the objective itself uses."""
        if self.order == 0:
            return own
        spec = self.reading.needs(self)
        clean = own.clean or spec.clean
        return replace(own, clean=clean, features=spec.features, draw=spec.draw, along_u=spec.along_u)

    def __call__(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        """The terms by name, weighted."""
        if self.order == 0:
            return {}
        weights = {"first": self.weight, "second": self.weight / 2}
        terms = self.reading.terms(self, outputs, y, context)
        return {name: weights[name] * value for name, value in terms.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaylorObjective(Objective):
    """An objective to which the paper's terms can be added. A method defines `own_terms` and its settings."""

    taylor: Taylor = Taylor()  # the paper's first- and second-order terms

    @property
    def needs(self) -> ForwardSpec:
        return self.taylor.needs(self.uses)

    @property
    def smooths_labels(self) -> bool:
        return self.smooths or (self.taylor.order > 0 and self.taylor.reading.smooths)

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        """The method's own terms; `Outputs.mean` averages them over u where the outer step draws it."""
        raise NotImplementedError

    def terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        return self.own_terms(outputs, y, context) | self.taylor(outputs, y, context)
