"""An objective in a training loop of your own: its loss from a model and two batches, nothing else of this library."""

from torch import Tensor, nn

from rattle.errors import RattleError, is_out_of_memory
from rattle.forward import PairedForward, full_precision
from rattle.inputs import check_batch, check_labels, check_model, images_checked, not_taken
from rattle.losses import refuse_one_logit
from rattle.models import find_head
from rattle.objectives.base import Objective, total
from rattle.weights import Delta, weights_of


def compute_loss(
    objective: Objective,  # such as Trades(taylor=Taylor(order=2))
    model: nn.Module,  # returns logits; the linear head that the Taylor terms need is found automatically
    x: Tensor,  # clean images
    x_adv: Tensor,  # adversarial images made from them
    y: Tensor,  # labels
    *,
    head: str | None = None,  # the name of the head, if it is not the last linear layer
    u: tuple[Delta, ...] = (),  # draws of Noise, for the modes exact and sampled
) -> Tensor:
    """The loss of an objective at x and x_adv, a scalar to call `.backward()` on.

    >>> import torch; from rattle.objectives import Trades
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, y = torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1])
    >>> compute_loss(Trades(), model, x, x, y).backward()
    """
    if not isinstance(objective, Objective):
        raise RattleError(f"the objective must be one such as rattle.Trades(), got {type(objective).__name__}")
    if objective.needs_run:
        raise RattleError(f"{objective.title} needs teachers, a state or images of its own: train it with rattle.fit")
    needs = objective.needs
    check_model(model)
    x, y = check_batch(x, y, soft=True, box=False)
    x_adv, y = check_batch(x_adv, y, soft=True, box=False)
    if x.shape != x_adv.shape or x.dtype != x_adv.dtype or not x.device == x_adv.device == y.device:
        raise RattleError("x and x_adv must have one shape and dtype, and the device of y")
    if y.ndim == 2 and not objective.soft_labels:
        raise RattleError(f"{objective.title} takes no soft labels: y must be whole numbers, one for each image")
    if needs.draw and (not isinstance(u, tuple) or not u):
        raise RattleError("this objective.taylor.mode needs u, a tuple of draws: (rattle.Noise()(model),)")
    for draw in u or ({},):
        weights_of(model, draw)
    forward = PairedForward(model, needs, find_head(model, head) if needs.features else None)
    try:
        outputs = forward(x, x_adv, u)
    except (RuntimeError, IndexError, TypeError, ValueError) as reason:
        if isinstance(reason, RattleError) or is_out_of_memory(reason):
            raise
        raise not_taken(x, reason) from reason
    refuse_one_logit(outputs.logits_adv)
    with images_checked():  # values are checked on a CPU alone
        check_labels(outputs.logits_adv, y)
    with full_precision(x.device):
        return total(objective(outputs, y))
