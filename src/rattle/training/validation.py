"""Accuracies on the held-out images, and signs on some of them that the robust one is too high."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.inputs import NotFinite, input_gradient, is_correct, logits_of
from rattle.losses import ce
from rattle.randomness import ImageStreams
from rattle.runs import distributed
from rattle.threat import Threat, length
from rattle.training.metrics import Diverged
from rattle.training.state import TrainState
from rattle.weights import eval_mode

BATCH = 250  # images of a forward pass; the first batch is looked at closely
SIGNS = ("robust", "margin", "one_step", "masked", "fosc", "relative")


def validate(state: TrainState, model: nn.Module) -> dict[str, float]:
    """Clean and robust accuracy on the held-out images, and `signs` of the first batch: every so manieth image."""
    assert state.data.val is not None
    val, device, seed = state.data.val, state.device, state.recipe.seed
    attacks = state.recipe.validation_attacks
    batches = -(-len(val) // BATCH)
    sums = torch.zeros(1 + len(attacks) + len(SIGNS), dtype=torch.float64, device=device)
    try:
        with distributed.raise_on_all_ranks(), eval_mode(model):
            for number in range(distributed.rank(), batches, distributed.world_size()):
                rows = torch.arange(number, len(val), batches)
                batch = val[rows].to(device)
                x, y = state.floats(batch.x), batch.y
                correct = is_correct(model, x, y)
                x, y, rows = x[correct], y[correct], rows.to(device)[correct]
                sums[0] += len(y)
                if not len(y):
                    continue
                points = {}
                for place, (name, attack) in enumerate(attacks.items(), 1):
                    points[name] = attack(model, x, y, generator=ImageStreams(seed, rows))
                    sums[place] += is_correct(model, points[name], y).sum()
                if number == 0:
                    attack = attacks["val_robust"]
                    sums[-len(SIGNS) :] += signs(model, attack, x, y, points["val_robust"], ImageStreams(seed, rows))
    except NotFinite as reason:  # weights so large that activations overflow
        raise Diverged(state.progress.step, {"logits": float("nan")}) from reason
    totals = distributed.sum_over_ranks(sums).tolist()
    sample = len(range(0, len(val), batches))
    found = {}
    for name, total in zip(("val_clean", *attacks), totals, strict=False):
        found[name] = total / len(val)
    found["val_sample"] = sample
    for name, total in zip(SIGNS, totals[-len(SIGNS) :], strict=True):
        found[f"val_sample_{name}"] = total / sample
    return found


def signs(model: nn.Module, attack: PGD, x: Tensor, y: Tensor, x_adv: Tensor, draws: ImageStreams) -> Tensor:
    robust = is_correct(model, x_adv, y)
    margin = is_correct(model, replace(attack, loss="cw")(model, x, y, generator=draws), y)
    one_step = replace(attack, steps=1, step_size=attack.threat.epsilon, start="none")(model, x, y)
    stands = is_correct(model, one_step, y)
    with attack_mode(model):
        leaf = x_adv.detach().requires_grad_()
        gradient = input_gradient(ce(logits_of(model, leaf), y).sum(), leaf)
    c, dual = fosc(attack.threat, x, x_adv, gradient)
    parts = (robust, margin & robust, stands, robust & ~stands, c, c/ dual.clamp_min(1e-30))
    return torch.stack([part.double().sum() for part in parts])


def fosc(threat: Threat, x: Tensor, x_adv: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    norm = {"linf": 1, "l2": 2, "l1": torch.inf}[threat.norm]
    most = threat.epsilon * gradient.flatten(1).norm(dim=1, p=norm)
    return most - ((x_adv - x) * gradient).flatten(1).sum(1), most
