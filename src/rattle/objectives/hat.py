"""HAT (Rade and Moosavi-Dezfooli 2022): TRADES, and beyond x' a point that gets the label a plain network gives x'."""

from dataclasses import dataclass, replace

from torch import Tensor

from rattle.forward import ForwardSpec, Outputs
from rattle.losses import ce
from rattle.objectives.base import Batch, Method, StepContext, Teacher, Teachers, Terms
from rattle.objectives.taylor_terms import TaylorObjective
from rattle.objectives.trades import KL_ATTACK, Trades
from rattle.settings import NonNegative

H = 2.0  # where the helper is on the line from x through x'


@dataclass(frozen=True, slots=True, kw_only=True)
class HAT(TaylorObjective):
    """CE(f(x), y) + beta KL(p(x) || p(x')) + gamma CE(f(x + h r), y~) + Taylor terms.

    r = x' - x, and y~ is the class that a network trained without an adversary sees at x'.

    >>> import torch; z = torch.tensor([[2.0, 0.0]])
    >>> terms = HAT()(Outputs(z, z, extra=z, taught_adv={"standard": -z}), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'clean': 0.127, 'zeroth': 0.0, 'helper': 1.063}
    """

    title = "HAT"
    trade_off = "objective.beta"
    needs_run = True
    uses = ForwardSpec(extra=True, taught_adv=("standard",))
    beta: NonNegative = 2.5  # weight of the KL term; 3.5 with further data
    gamma: NonNegative = 0.5  # weight of the helper's term
    teacher: Teacher = Teacher()  # the network trained without an adversary

    @property
    def teachers(self) -> Teachers:
        return {"standard": (self.teacher, "standard")}

    def prepare(self, batch: Batch, context: StepContext) -> Batch:
        helper = batch.x + H * (batch.x_adv - batch.x)  # may leave [0, 1], as the authors' does
        return replace(batch, extra=helper)

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> Terms:
        assert outputs.extra is not None, "prepare() adds the helper"
        helper = ce(outputs.extra, outputs.taught_adv["standard"].argmax(1)).mean()
        return Trades(inv_lambda=self.beta).own_terms(outputs, y, context) | {"helper": self.gamma * helper}


METHOD = Method(
    objective=HAT(),
    attack=KL_ATTACK,
)
