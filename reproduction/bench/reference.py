"""Plain references: each algorithm as published, copies, repeated passes and all.

Tests hold the library to them and the benchmarks measure against them. The authors' step is written from a description
of their release, TRADES' loop from its paper; nothing here is fast, and nothing else imports it.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.randomness import ImageStreams


def kl_batchmean(log_q: Tensor, p: Tensor) -> Tensor:
    return F.kl_div(log_q, p, reduction="batchmean")


def published_inner_loop(
    model: nn.Module, x: Tensor, *, epsilon: float, step_size: float, steps: int, draws: ImageStreams
) -> Tensor:
    """TRADES' inner maximisation (l_inf) as published: the clean forward is made again at every step."""
    model.eval()
    x_adv = x.detach() + 0.001 * draws.normal(*x.shape[1:])
    for _ in range(steps):
        x_adv.requires_grad_()
        with torch.enable_grad():
            loss = F.kl_div(F.log_softmax(model(x_adv), 1), F.softmax(model(x), 1), reduction="sum")
        gradient = torch.autograd.grad(loss, [x_adv])[0]
        x_adv = x_adv.detach() + step_size * torch.sign(gradient.detach())
        x_adv = torch.min(torch.max(x_adv, x - epsilon), x + epsilon)
        x_adv = torch.clamp(x_adv, 0.0, 1.0)
    model.train()
    return x_adv.detach()


def published_trades(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, *, inv_lambda: float) -> Tensor:
    """The TRADES loss as published."""
    clean = model(x)
    robust = kl_batchmean(F.log_softmax(model(x_adv), 1), F.softmax(clean, 1))
    return F.cross_entropy(clean, y) + inv_lambda * robust


def noisy_copy(model: nn.Module, sigma: float, generator: torch.Generator) -> nn.Module:
    """A deep copy with N(0, sigma^2) on its convolutions."""
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for p in noisy.parameters():
            if p.ndim == 4:
                p.add_(sigma * torch.randn(p.shape, generator=generator).to(p))
    return noisy


def head_rows(model: nn.Module, head: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """Row sums of the head's gradient, by a forward and a backward through the whole model."""
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    (rows,) = (g for p, g in zip(model.parameters(), gradients, strict=True) if p is head.weight)
    return rows.sum(1)


def rows_of_targets(gap: Tensor) -> Tensor:
    """Soft labels of every class, one class at a time; a uniform row where the release would divide 0 by 0."""
    classes = len(gap)
    c = 1 - 2 / classes
    gap = gap - gap.min()
    gap = gap / gap.sum() if gap.sum() > 0 else gap
    rows = gap.new_zeros(classes, classes)
    for k in range(classes):
        others = torch.cat([gap[:k], gap[k + 1 :]])
        share = others / others.sum() if others.sum() > 0 else torch.full_like(others, 1 / (classes - 1))
        rows[k] = torch.cat([share[:k] * c, gap.new_tensor([1 - c]), share[k:] * c])
    return rows


def released_loss(
    model: nn.Module, head: nn.Linear, x: Tensor, x_adv: Tensor, y: Tensor, *, eta: float, inv_lambda: float = 6.0
) -> Tensor:
    """The release's outer loss of order 2: two backwards for head gradients, each term from its own forward."""
    r, r_adv = head_rows(model, head, x, y), head_rows(model, head, x_adv, y)
    first_adv, first_clean = rows_of_targets(r.abs() - r_adv.abs()), rows_of_targets(r_adv.abs() - r.abs())
    second = rows_of_targets(r_adv**2 - r**2)  # for x and, by the slip, for x' too

    def kl(images: Tensor, targets: Tensor) -> Tensor:
        return kl_batchmean(F.log_softmax(model(images), 1), targets)

    log_adv, clean = F.log_softmax(model(x_adv), 1), model(x)  # in this order: BatchNorm's statistics move with each
    zeroth = kl_batchmean(log_adv, F.softmax(clean, 1))
    first = 0.5 * (kl(x_adv, first_adv[y]) + kl(x, first_clean[y]))
    second = 0.5 * (kl(x_adv, second[y]) + kl(x, second[y]))
    return (1 - eta) * F.cross_entropy(clean, y) + inv_lambda * zeroth + eta * first + eta / 2 * second


def released_step(
    model: nn.Module, head: nn.Linear, x: Tensor, y: Tensor, *, sigma: float, eta: float, generator: Any, **inner: Any
) -> Tensor:
    """One step of the authors' algorithm up to the gradient: 2 K inner and 8 outer forwards, K + 3 backwards.

    `generator` draws the noise; the other settings are those of `published_inner_loop`.
    """
    noisy = noisy_copy(model, sigma, generator)  # lives until the end, as in the release
    x_adv = published_inner_loop(noisy, x, **inner)
    model.train()
    loss = released_loss(model, head, x, x_adv, y, eta=eta)
    loss.backward()
    return loss.detach()


def released_awp_step(
    model: nn.Module,
    head: nn.Linear,
    x: Tensor,
    y: Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    gamma: float,
    eta: float,
    inv_lambda: float = 6.0,
    **inner: Any,
) -> Tensor:
    """One step of the authors' AWP-TRADES script: a copy climbs plain TRADES in 3 forwards, the loss takes 2 and 3
    backwards, and the optimizer steps at w + v before v is subtracted. `inner`: of `published_inner_loop`."""
    x_adv = published_inner_loop(model, x, **inner)
    proxy = copy.deepcopy(model).train()
    robust = kl_batchmean(F.log_softmax(proxy(x_adv), 1), F.softmax(proxy(x), 1))
    (F.cross_entropy(proxy(x), y) + inv_lambda * robust).backward()
    pairs = [(p, q) for p, q in zip(model.parameters(), proxy.parameters(), strict=True) if p.ndim > 1]
    v = [(p, gamma * p.detach().norm() / (q.grad.norm() + 1e-20) * q.grad) for p, q in pairs if q.grad is not None]
    for p, delta in v:
        p.data.add_(delta)
    z, z_adv = model(x), model(x_adv)
    losses = F.cross_entropy(z, y), F.cross_entropy(z_adv, y)
    r, r_adv = (torch.autograd.grad(loss, head.weight, retain_graph=True)[0].sum(1) for loss in losses)
    targets = rows_of_targets(r.abs() - r_adv.abs())[y], rows_of_targets(r_adv.abs() - r.abs())[y]
    second = rows_of_targets(r_adv**2 - r**2)[y]
    log_adv, log_clean = F.log_softmax(z_adv, 1), F.log_softmax(z, 1)
    loss = (1 - eta) * losses[0] + inv_lambda * kl_batchmean(log_adv, F.softmax(z, 1))
    loss = loss + eta * 0.5 * (kl_batchmean(log_adv, targets[0]) + kl_batchmean(log_clean, targets[1]))
    loss = loss + eta * 0.2 * (kl_batchmean(log_adv, second) + kl_batchmean(log_clean, second))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for p, delta in v:
        p.data.sub_(delta)
    return loss.detach()


def textbook_pgd(model: nn.Module, x: Tensor, y: Tensor, *, epsilon: float, step_size: float, steps: int) -> Tensor:
    """PGD as everybody first writes it: weights ask for gradients, the whole loss is differentiated."""
    x_adv = (x + torch.empty_like(x).uniform_(-epsilon, epsilon)).clamp(0, 1)
    for _ in range(steps):
        x_adv.requires_grad_()
        model.zero_grad()
        F.cross_entropy(model(x_adv), y).backward()
        assert x_adv.grad is not None
        x_adv = x_adv.detach() + step_size * x_adv.grad.sign()
        x_adv = torch.min(torch.max(x_adv, x - epsilon), x + epsilon).clamp(0, 1)
    return x_adv.detach()
