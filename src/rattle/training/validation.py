"""Accuracies on the held-out images, and on some of them the signs of a robust accuracy that is too high.

The signs are those of catastrophic overfitting (one step is withstood, ten are not) and of masked gradients (the margin
breaks what the cross-entropy does not, one step what ten do not); docs/guides/false-robustness.md has their rates.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.inputs import NotFinite, input_gradient, is_correct, logits_of
from rattle.losses import ce
from rattle.randomness import ImageStreams
from rattle.runs import distributed
from rattle.threat import Threat
from rattle.training.metrics import Diverged
from rattle.training.state import TrainState
from rattle.weights import Tensors, eval_mode

VALIDATION_BATCH = 250  # images of a forward pass; the signs are those of the first, which is spread evenly over all
SIGNS = ("robust", "margin", "one_step", "only_one_step", "fosc")
FEWEST_IMAGES, FEWEST_ATTACK_STEPS = 100, 5  # with fewer the signs are no ground for a sentence
GAP = 0.2  # of the images: what one attack breaks beyond another, where the difference is more than chance and youth
OVERFITTED = 0.5  # share of the images that withstand one step which several steps break
MARGIN_GAP = 0.25  # share of those that withstand the cross-entropy which the margin breaks
ONLY_ONE_STEP = 0.06  # of the images: those that one step breaks and several do not


def validate(state: TrainState, model: nn.Module) -> dict[str, float]:
    """Clean and robust accuracy on the held-out images, and the signs on at most 250 of them."""
    assert state.data.val is not None
    val, device, seed = state.data.val, state.device, state.recipe.seed
    attacks, batches = state.recipe.validation_attacks, -(-len(val) // VALIDATION_BATCH)
    names = ("val_clean", *attacks, *(f"val_sample_{name}" for name in SIGNS))
    sums = {name: torch.zeros((), dtype=torch.float32, device=device) for name in names}
    try:
        with distributed.raise_on_all_ranks(), eval_mode(model):
            for number in range(distributed.rank(), batches, distributed.world_size()):
                rows = torch.arange(number, len(val), batches)
                batch = val[rows].to(device)
                x, y = state.floats(batch.x), batch.y
                correct = is_correct(model, x, y)
                sums["val_clean"] += correct.sum()
                x, y, rows = x[correct], y[correct], rows.to(device)[correct]
                for name, attack in attacks.items() if len(y) else ():
                    x_adv = attack(model, x, y, generator=ImageStreams(seed, rows))
                    sums[name] += is_correct(model, x_adv, y).sum()
                    if number == 0 and name == "val_robust":
                        for sign, value in signs(model, attack, x, y, x_adv, ImageStreams(seed, rows)).items():
                            sums[f"val_sample_{sign}"] += value.sum()
    except NotFinite as reason:  # weights so large that activations overflow
        raise Diverged(state.progress.step, {"logits": float("nan")}) from reason
    totals = distributed.sum_over_ranks(torch.stack(list(sums.values()))).tolist()
    sample = len(range(0, len(val), batches))
    found: dict[str, float] = {"val_sample": sample}
    for name, total in zip(names, totals, strict=True):
        found[name] = total / (sample if name.startswith("val_sample_") else len(val))
    return found


def signs(model: nn.Module, attack: PGD, x: Tensor, y: Tensor, x_adv: Tensor, draws: ImageStreams) -> Tensors:
    """What each of SIGNS is the mean of, [n]; x_adv: the end points of the attack, on the cross-entropy."""
    robust = is_correct(model, x_adv, y)
    by_margin = is_correct(model, replace(attack, loss="cw")(model, x, y, generator=draws), y)
    one_step = replace(attack, steps=1, step_size=attack.threat.epsilon, start="none")
    by_one_step = is_correct(model, one_step(model, x, y), y)
    with attack_mode(model):
        leaf = x_adv.detach().requires_grad_()
        gradient = input_gradient(ce(logits_of(model, leaf), y).sum(), leaf)
    return {
        "robust": robust,
        "margin": robust & by_margin,
        "one_step": by_one_step,
        "only_one_step": robust & ~by_one_step,
        "fosc": fosc(attack.threat, x, x_adv, gradient),
    }


def fosc(threat: Threat, x: Tensor, x_adv: Tensor, gradient: Tensor) -> Tensor:
    """The first-order stationary condition (Wang et al. 2019, eq. 6): epsilon ||g||_dual - <x' - x, g>, [n].

    It is 0 where the loss, as its gradient g at x' shows it, is highest in the ball; [0, 1] does not count.
    """
    dual = {"linf": 1, "l2": 2, "l1": torch.inf}[threat.norm]
    most = threat.epsilon * gradient.flatten(1).norm(dim=1, p=dual)
    return most - ((x_adv - x) * gradient).flatten(1).sum(1)


def false_robustness(metrics: Mapping[str, float], steps: int) -> str | None:
    """A sentence where a sign crosses its threshold; of averaged weights where there are any. steps: of the attack."""
    kind = "_average" if "val_sample_average" in metrics else ""
    n = metrics.get(f"val_sample{kind}", 0)
    if n < FEWEST_IMAGES or steps < FEWEST_ATTACK_STEPS:
        return None
    robust, margin, one_step, only_one_step = (metrics[f"val_sample_{name}{kind}"] for name in SIGNS[:4])
    if one_step - robust >= max(GAP, OVERFITTED * one_step):
        seen = f"{one_step:.0%} of {n:.0f} held-out images withstand one step and {robust:.0%} withstand {steps}"
        return f"{seen}: catastrophic overfitting to attacks of one step"
    if robust - margin >= max(GAP, MARGIN_GAP * robust):
        seen = f"{robust:.0%} of {n:.0f} held-out images withstand the cross-entropy and {margin:.0%} the margin too"
        return f"{seen}: gradients may be masked, the robust accuracy is too high"
    if only_one_step >= ONLY_ONE_STEP:
        seen = f"one step breaks {only_one_step:.0%} of {n:.0f} held-out images that {steps} steps do not"
        return f"{seen}: gradients may be masked, the robust accuracy is too high"
    return None
