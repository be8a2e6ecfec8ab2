"""An objective in a training loop of your own: its loss from a model and two batches, nothing else of this library."""

from collections.abc import Mapping

from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.forward import PairedForward
from rattle.models import find_head
from rattle.objectives.base import HasTeachers, Objective, Prepares, UsesContext, mixed_terms, total


def compute_loss(
    objective: Objective,  # such as Trades(taylor=Taylor(order=2))
    model: nn.Module,  # returns logits; the linear head that the Taylor terms need is found by itself
    x: Tensor,  # clean images
    x_adv: Tensor,  # adversarial images made from them
    y: Tensor,  # labels
    *,
    head: str | None = None,  # the name of the head, if it is not the last linear layer
    u: tuple[
        Mapping[str, Tensor], ...
    ] = (),  # draws of Noise, for exact, trace and sampled; its deviations for head-noise
) -> Tensor:
    """The loss, a scalar to call `.backward()` on.

    >>> import torch; from rattle.objectives import Trades
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1])
    >>> compute_loss(Trades(), model, x, x, y).backward()
    """
    if isinstance(objective, HasTeachers | Prepares | UsesContext):
        raise RattleError(
            f"{objective.title} needs teachers, a memory or images of its own making: train it with rattle.fit"
        )
    needs = objective.needs
    forward = PairedForward(model, needs, find_head(model, head) if needs.features else None)
    return total(mixed_terms(objective, forward(x, x_adv, u), y, share=needs.share))
