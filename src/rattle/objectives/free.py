"""Free adversarial training (Shafahi et al. 2019): the backward pass of every update also moves the perturbation."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.inputs import check_batch
from rattle.objectives.at import AT
from rattle.objectives.base import ONE_STEP, InnerAttack, Method, StepContext
from rattle.randomness import Randomness
from rattle.settings import Count, Positive
from rattle.threat import Threat
from rattle.weights import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Free(AT):
    """CE(f(x + delta), y) + Taylor terms; each minibatch is trained on `replays` times in a row.

    delta belongs to the places of a minibatch: the next replay and the next minibatch begin with it.
    """

    title = "Free AT"
    unused = ONE_STEP
    replays: Count = 8  # m, updates of the weights on each minibatch  # pyright: ignore[reportIncompatibleVariableOverride]
    step: Positive = 1.0  # length of delta's step in each of them, over epsilon

    def state(self, *, images: int, classes: int, batch: torch.Size) -> Tensors:
        return {"delta": torch.zeros(batch)}

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        return partial(self.carried, pgd.threat, context.memory.tensors["delta"][context.place :])

    def carried(
        self, threat: Threat, rows: Tensor, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None
    ) -> Tensor:
        """clip(x + delta), without a pass through the model: delta moves when the training loss at x' goes backward.

        rows: delta of each image, changed in place.
        """
        x, y = check_batch(x, y, soft=True)
        rows = rows[: len(x)]
        delta = rows.to(x.dtype, copy=True).requires_grad_()

        def carry(gradient: Tensor) -> None:
            rows.copy_(threat.shorten(threat.ascend(delta.detach(), gradient, self.step * threat.epsilon)))

        delta.register_hook(carry)
        return (x + delta).clamp(0, 1)


# The epochs are divided by the replays: as many updates as any other method has.
METHOD = Method(
    objective=Free(),
    length=1 / Free().replays,
)
