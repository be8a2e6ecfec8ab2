"""HAT (Rade and Moosavi-Dezfooli 2022): TRADES, and beyond x' a point that gets the label a plain network gives x'."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import Batch, Method, Reduce, StepContext, Teacher, check_weights, unreduced
from rattle.objectives.taylor_terms import Taylor
from rattle.objectives.trades import Trades


@dataclass(frozen=True, slots=True, kw_only=True)
class HAT:
    """CE(f(x), y) + beta KL(p(x) || p(x')) + gamma CE(f(x + h r), y~) + Taylor terms.

    r = x' - x, and y~ is the class that a network trained without an adversary sees at x'.

    >>> import torch; z = torch.tensor([[2.0, 0.0]])
    >>> terms = HAT()(Outputs(z, z, extra=z, taught_adv={"standard": -z}), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'clean': 0.127, 'zeroth': 0.0, 'helper': 1.063}
    """

    title: ClassVar[str] = "HAT"
    taylor: Taylor = Taylor()  # the paper's first- and second-order terms
    beta: float = 2.5  # weight of the KL term; 3.5 with further data
    gamma: float = 0.5  # weight of the helper's term
    h: float = 2.0  # where the helper is on the line from x through x'
    teacher: Teacher = Teacher()  # the network trained without an adversary

    def __post_init__(self) -> None:
        check_weights(self, "beta", "gamma")
        if not self.h > 1:
            raise RattleError(f"objective.h must be > 1, so that the helper x + h r lies beyond x', got {self.h}")

    @property
    def needs(self) -> ForwardSpec:
        return replace(self.taylor.needs(clean=True), further=True, taught_adv=("standard",))

    @property
    def teachers(self) -> Mapping[str, tuple[Teacher, str]]:
        return {"standard": (self.teacher, "standard")}

    def prepare(self, batch: Batch, context: StepContext) -> Batch:
        helper = batch.x + self.h * (batch.x_adv - batch.x)  # may leave [0, 1], as the authors' does
        return replace(batch, extra=helper)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        assert outputs.extra is not None, "prepare() adds the helper"
        helper = ce(outputs.extra, outputs.taught_adv["standard"].argmax(1)).mean()
        terms = Trades(inv_lambda=self.beta)(outputs, y) | {"helper": self.gamma * helper}
        return terms | self.taylor(outputs, y, reduce=reduce)


METHOD = Method(
    objective=HAT(),
    attack=PGD(loss="kl", start="gaussian"),
)
