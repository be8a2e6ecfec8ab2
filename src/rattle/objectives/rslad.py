"""RSLAD (Zi et al. 2021): a robust teacher's probabilities at x take the labels' place, in the inner attack too."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rattle.attacks import PGD, Attack
from rattle.attacks.base import attack_mode
from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs
from rattle.inputs import logits_of
from rattle.losses import kl
from rattle.objectives.base import Method, Reduce, StepContext, Teacher, unreduced
from rattle.randomness import Randomness, streams
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class RSLAD:
    """alpha KL(p_T(x) || p(x')) + (1 - alpha) KL(p_T(x) || p(x)), where x' maximises the first.

    >>> z = torch.tensor([[2.0, 0.0]])
    >>> terms = RSLAD()(Outputs(z, -z, taught_clean={"robust": z}), torch.tensor([0]))
    >>> {name: round(float(value), 3) for name, value in terms.items()}
    {'zeroth': 1.269, 'clean': 0.0}
    """

    title: ClassVar[str] = "RSLAD"
    alpha: float = 5 / 6  # weight of x' against x
    teacher: Teacher = Teacher()  # trained by TRADES; a WRN-34-10 in the paper

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise RattleError(f"objective.alpha must lie between 0 and 1, got {self.alpha}")

    @property
    def needs(self) -> ForwardSpec:
        return ForwardSpec(clean=True, taught_clean=("robust",))

    @property
    def teachers(self) -> Mapping[str, tuple[Teacher, str]]:
        return {"robust": (self.teacher, "trades")}

    def inner_attack(self, attack: PGD, context: StepContext) -> Attack:
        return AwayFrom(teacher=context.teachers["robust"], attack=attack)

    def __call__(self, outputs: Outputs, y: Tensor, *, reduce: Reduce = unreduced) -> dict[str, Tensor]:
        assert outputs.logits is not None, "needs() asks for the logits at x"
        taught = outputs.taught_clean["robust"]
        zeroth, clean = (kl(taught, z).mean() for z in (outputs.logits_adv, outputs.logits))
        return {"zeroth": self.alpha * zeroth, "clean": (1 - self.alpha) * clean}


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayFrom:
    """The recipe's attack with a teacher's probabilities at x in place of the model's own: KL(p_T(x) || p(x'))."""

    teacher: nn.Module
    attack: PGD  # with the loss kl

    @property
    def threat(self) -> Threat:
        return self.attack.threat

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        with torch.no_grad():
            taught = logits_of(self.teacher, x)
        with attack_mode(model):
            return self.attack.ascend(model, x, taught, streams(generator, x))


METHOD = Method(
    objective=RSLAD(),
    attack=PGD(loss="kl", start="gaussian"),
)
