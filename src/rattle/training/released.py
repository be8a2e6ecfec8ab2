"""One training step of the authors' release, written out: TRADES + 1st + 2nd, and the same with AWP.

Beside Algorithm 1 it weighs the clean term by 1 - eta, takes the second-order target of x' from the gap of the other
sign, and in l_2 clips to [0, 1] before it projects. Its TRADES script draws u for convolutions, and runs every term
through the network again (8 forward passes in train mode). Its AWP script has no u, climbs plain TRADES, and steps the
optimizer at w + v, weight decay included. docs/guides/method.md compares them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.errors import RattleError
from rattle.forward import at_least_float32
from rattle.inputs import images_checked
from rattle.losses import logits_in
from rattle.objectives.base import Terms, total
from rattle.objectives.trades import Released
from rattle.randomness import ImageStreams
from rattle.threat import length
from rattle.training.step import StepInputs
from rattle.weights import AWP, Tensors, frozen_bn_stats, perturbed, weight_gradients


def released_step(given: StepInputs, *, awp_script: bool, resnet: bool, weight_decay: float) -> Terms:
    """Compute the gradient of one minibatch, as `step` does; weights are where they were, also with AWP.

    awp_script: the script with AWP, also in the epochs before it starts; resnet: the script for ResNet-18;
    weight_decay: the optimizer's.
    """
    x, y, model, head = given.x, given.y, given.forward.model, given.forward.head[0]
    objective, context = given.objective, given.context
    assert isinstance(objective, Released)
    assert head is not None, "needs() asks for the head"
    eta, inv_lambda = objective.taylor.weight, objective.inv_lambda

    def logits(images: Tensor) -> Tensor:
        return at_least_float32(logits_in(model(images)))

    # Adversarial examples at w + u; with AWP at w.
    u = {} if awp_script else convolution_noise(model, given.noise.sigma, given.shared, by_name=resnet)
    with perturbed(model, u), images_checked():
        x_adv = inner_loop(model, x, given.attack, context.draws)

    # AWP climbs plain TRADES, statistics frozen: the release does it on a copy that it throws away.
    v = {}
    if isinstance(given.awp, AWP):
        with frozen_bn_stats(model):
            plain = F.cross_entropy(logits(x), y) + inv_lambda * kl_div(logits(x_adv), logits(x).softmax(1))
            v = given.awp(model, context.reduce(weight_gradients(model, plain, ndim=2)))

    with perturbed(model, v):
        z, z_adv = logits(x), logits(x_adv)
        natural = F.cross_entropy(z, y)
        r = head_rows(natural, head), head_rows(F.cross_entropy(z_adv, y), head)
        r, r_adv = context.mean(torch.stack(r))
        c = 0.8 if awp_script and resnet else 1 - 2 / z.shape[1]
        plus = soft_labels(r.abs() - r_adv.abs(), c)[y]
        minus = soft_labels(r_adv.abs() - r.abs(), c)[y]
        second = soft_labels(r_adv**2 - r**2, c)[y]  # for x' too, by a slip

        def pair() -> tuple[Tensor, Tensor]:
            return (z_adv, z) if awp_script else (logits(x_adv), logits(x))

        adv, clean = pair()
        zeroth_term = kl_div(adv, clean.softmax(1))
        adv, clean = pair()
        first_term = 0.5 * (kl_div(adv, plus) + kl_div(clean, minus))
        adv, clean = pair()
        second_term = 0.5 * (kl_div(adv, second) + kl_div(clean, second))
        second_factor = 0.4 if awp_script and resnet else 0.5
        terms = {
            "clean": (1 - eta) * natural,
            "zeroth": inv_lambda * zeroth_term,
            "first": eta * first_term,
            "second": eta * second_factor * second_term,
        }
        (given.weight * total(terms)).backward()

    # The optimizer's weight decay is at w + v; gradients are averaged over ranks here, without DDP.
    for name, delta in v.items():
        gradient = model.get_parameter(name).grad
        assert gradient is not None, "v comes from gradients"
        gradient.add_(delta, alpha=given.weight * weight_decay)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name, mean in context.reduce(gradients).items():
        gradients[name].copy_(mean)
    return {name: value.detach() for name, value in terms.items()}


def kl_div(logits: Tensor, target: Tensor) -> Tensor:
    """KL(target || p), the mean over the images."""
    return F.kl_div(F.log_softmax(logits, 1), target, reduction="batchmean")


def convolution_noise(model: nn.Module, sigma: float, generator: torch.Generator, *, by_name: bool) -> Tensors:
    """u on the convolutions: those with conv in their name (not the shortcuts of ResNet-18), or all with ndim 4."""
    u = {}
    for name, p in model.named_parameters():
        if (by_name and "conv" in name and p.ndim > 1) or (not by_name and p.ndim == 4):
            u[name] = (sigma * torch.randn(p.shape, generator=generator)).to(p)
    return u


def inner_loop(model: nn.Module, x: Tensor, attack: PGD, draws: ImageStreams) -> Tensor:
    """TRADES' inner maximisation, in which [0, 1] comes before the l_2 ball."""
    if attack.threat.norm not in ("linf", "l2"):
        raise RattleError(f"the authors' release knows threat.norm linf and l2, got {attack.threat.norm}")
    epsilon, step_size = attack.threat.epsilon, attack.step_size
    delta = 0.001 * draws.normal(*x.shape[1:]).to(x.dtype)
    with attack_mode(model):
        p = at_least_float32(logits_in(model(x))).softmax(1).detach()
        for _ in range(attack.steps):
            delta = delta.detach().requires_grad_()
            loss = kl_div(at_least_float32(logits_in(model(x + delta))), p) * len(x)
            (gradient,) = torch.autograd.grad(loss, delta)
            delta = delta.detach()
            if attack.threat.norm == "linf":
                x_adv = x + delta + step_size * gradient.sign()
                delta = torch.min(torch.max(x_adv, x - epsilon), x + epsilon).clamp(0, 1) - x
            else:
                delta = delta + step_size * gradient / length(gradient).clamp_min(1e-12)
                delta = (x + delta).clamp(0, 1) - x
                delta = delta * (epsilon / length(delta).clamp_min(1e-12)).clamp_max(1)
    return x + delta


def head_rows(loss: Tensor, head: nn.Linear) -> Tensor:
    """Row sums of the loss's gradient by the head, [C]."""
    (gradient,) = torch.autograd.grad(loss, head.weight, retain_graph=True)
    return gradient.sum(1)


def soft_labels(gap: Tensor, c: float) -> Tensor:
    """For each class k a row: the gap without entry k, scaled to the mass c, and 1 - c on k; uniform for 0 / 0."""
    classes = len(gap)
    rows = (gap - gap.min()).repeat(classes, 1).fill_diagonal_(0)
    sums = rows.sum(1, keepdim=True)
    rows = torch.where(sums > 0, c * rows / sums, c / (classes - 1))
    return rows.fill_diagonal_(1 - c)
