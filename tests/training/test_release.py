"""`-released` recipes beside the authors' training step, written out literally from a description of their code.

Two scripts: TRADES (8 forwards in train mode a step, u on a copy's convolutions) and AWP-TRADES (a proxy network climbs
plain TRADES, the optimizer steps at w + v, then v is subtracted).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.models import find_head
from rattle.models.registry import create_model
from rattle.objectives.base import StepContext
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.training.loop import fit
from rattle.training.released import convolution_noise, released_step
from support.steps import step_inputs

N, K, LR, DECAY, BETA, ALPHA = 8, 2, 0.05, 5e-4, 6.0, 0.2


def divergence(logits: Tensor, target: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(logits, dim=1), target, reduction="batchmean")


def adversarial(model: nn.Module, x: Tensor, noise: Tensor, norm: str, epsilon: float) -> Tensor:
    """The inner loop in evaluation mode; in l_2 the step is 2 epsilon / K, and the box comes before the ball."""
    model.eval()
    delta = 0.001 * noise
    for _ in range(K):
        delta = delta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(divergence(model(x + delta), model(x).softmax(1)) * len(x), delta)
        if norm == "linf":
            x_adv = x + delta.detach() + 2 / 255 * gradient.sign()
            delta = torch.clamp(torch.min(torch.max(x_adv, x - epsilon), x + epsilon), 0, 1) - x
        else:
            lengths = gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            delta = delta.detach() + 2 * epsilon / K * gradient / lengths
            delta = (x + delta).clamp(0, 1) - x
            lengths = delta.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            delta = torch.where(lengths > epsilon, delta * (epsilon / lengths), delta)
    model.train()
    return (x + delta).detach()


def rows(gap: Tensor, c: float) -> Tensor:
    gap = gap - gap.min()
    gap = gap / gap.sum()
    table = gap.repeat(len(gap), 1)
    for i in range(len(gap)):
        table[i, i] = 0
    table = c * table / table.sum(1, keepdim=True)
    for i in range(len(gap)):
        table[i, i] = 1 - c
    return table


def head_rows(model: nn.Module, loss: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, find_head(model).weight, retain_graph=True)
    return gradient.sum(1)


def trades_step(model: nn.Module, optimizer: torch.optim.SGD, x: Tensor, y: Tensor, start: Tensor, seed: int, norm: str,
                epsilon: float, classes: int) -> None:  # fmt: skip
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in noisy.named_parameters():
            if "conv" in name:
                p.add_(1e-4 * torch.randn(p.shape, generator=generator))
    x_adv = adversarial(noisy, x, start, norm, epsilon)
    c = {10: 0.8, 100: 0.98}[classes]
    natural = F.cross_entropy(model(x), y)
    r = head_rows(model, natural)
    r_adv = head_rows(model, F.cross_entropy(model(x_adv), y))
    plus, minus = rows(r.abs() - r_adv.abs(), c)[y], rows(r_adv.abs() - r.abs(), c)[y]
    second = rows(r_adv**2 - r**2, c)[y]  # for both, by a slip
    log_adv = F.log_softmax(model(x_adv), dim=1)
    robust = F.kl_div(log_adv, model(x).softmax(1), reduction="batchmean")
    first_term = 0.5 * (divergence(model(x_adv), plus) + divergence(model(x), minus))
    second_term = 0.5 * (divergence(model(x_adv), second) + divergence(model(x), second))
    loss = natural * (1 - ALPHA) + ALPHA * first_term + 0.5 * ALPHA * second_term + BETA * robust
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def awp_step(model: nn.Module, optimizer: torch.optim.SGD, x: Tensor, y: Tensor, start: Tensor, seed: int, norm: str,
             epsilon: float, classes: int) -> None:  # fmt: skip
    """The ResNet-18 script: c is 0.8 whatever the classes, the second term's factor 0.4; no u anywhere."""
    x_adv = adversarial(model, x, start, norm, epsilon)
    proxy = copy.deepcopy(model).train()
    plain = F.cross_entropy(proxy(x), y) + BETA * divergence(proxy(x_adv), proxy(x).softmax(1))
    v = {}
    for name, p in proxy.named_parameters():
        (d,) = torch.autograd.grad(plain, p, retain_graph=True)
        if p.ndim > 1:
            v[name] = 0.005 * p.detach().norm() / (d.norm() + 1e-20) * d
    for name, delta in v.items():
        model.get_parameter(name).data.add_(delta)
    z, z_adv = model(x), model(x_adv)
    natural = F.cross_entropy(z, y)
    r, r_adv = head_rows(model, natural), head_rows(model, F.cross_entropy(z_adv, y))
    plus, minus = rows(r.abs() - r_adv.abs(), 0.8)[y], rows(r_adv.abs() - r.abs(), 0.8)[y]
    second = rows(r_adv**2 - r**2, 0.8)[y]
    first_term = divergence(z_adv, plus) + divergence(z, minus)
    second_term = divergence(z_adv, second) + divergence(z, second)
    loss = natural * (1 - ALPHA) + ALPHA * 0.5 * first_term + 0.5 * ALPHA * 0.4 * second_term
    optimizer.zero_grad()
    (loss + BETA * divergence(z_adv, z.softmax(1))).backward()
    optimizer.step()  # at w + v: so is its weight decay
    for name, delta in v.items():
        model.get_parameter(name).data.sub_(delta)


def library_step(recipe: Recipe, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
    context, shared = StepContext(draws=ImageStreams(seed, torch.arange(len(x)))), torch.Generator().manual_seed(seed)
    parts = {"noise": recipe.noise, "awp": recipe.awp, "shared": shared}
    given = step_inputs(model, recipe.objective, recipe.attack, x, y, context, **parts)
    return released_step(given, awp_script=recipe.awp is not None, resnet=True, weight_decay=DECAY)


def released(data: str, norm: str, method: str) -> Recipe:
    recipe = get_recipe(f"{data}-{norm}-preact18-{method}-released")
    step_size = recipe.attack.step_size * recipe.attack.steps / K if norm == "l2" else recipe.attack.step_size
    return replace(recipe, attack=replace(recipe.attack, steps=K, step_size=step_size))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize(("method", "twin"), [("trades-2nd", trades_step), ("trades-awp-2nd", awp_step)])
def test_a_released_recipe_takes_the_steps_of_the_authors_code(method: str, twin, classes: int, norm: str) -> None:
    recipe = released("cifar10" if classes == 10 else "cifar100", norm, method)
    assert recipe.optimizer.weight_decay == DECAY
    ours = create_model("preact18", classes=classes, width=2).double().train()
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=LR, momentum=0.9, weight_decay=DECAY) for m in (ours, theirs)]
    # near x the gradient of the KL is tiny, and l_2 steps divide by its length: that is where rounding shows
    close = {"rtol": 1e-9, "atol": 1e-11} if norm == "linf" else {"rtol": 1e-6, "atol": 1e-8}
    for i in range(3):
        x, y = torch.rand(N, 3, 8, 8, dtype=torch.double), torch.randint(classes, (N,))
        start = ImageStreams(i, torch.arange(N)).normal(3, 8, 8).double()
        optimizers[0].zero_grad()
        terms = library_step(recipe, ours, x, y, i)
        optimizers[0].step()
        assert list(terms) == ["clean", "zeroth", "first", "second"]
        twin(theirs, optimizers[1], x, y, start, i, norm, recipe.attack.threat.epsilon, classes)
        for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, **close, msg=lambda text, n=name: f"{n}: {text}")


def test_noise_goes_where_the_authors_names_say() -> None:
    model = create_model("wrn16-4", classes=10)
    drawn = convolution_noise(model, 1e-4, torch.Generator(), by_name=False)
    assert sorted(drawn) == sorted(name for name, p in model.named_parameters() if p.ndim == 4)


@pytest.mark.parametrize("method", ["trades-2nd", "trades-awp-2nd"])
def test_epochs_are_counted_from_one(method: str) -> None:
    recipe = get_recipe(f"cifar10-linf-preact18-{method}-released")
    steps = recipe.steps(50_000)
    assert steps == 391
    rates = [recipe.schedule(epoch * steps / (recipe.epochs * steps)) for epoch in range(200)]
    assert [rates.index(rate) + 1 for rate in (1, 0.1, 0.1 * 0.1)] == [1, 100, 150]
    assert recipe.data.val_size == 0
    if recipe.awp:
        assert recipe.awp.warmup == 9  # from the tenth epoch on


def test_the_last_short_batch_is_trained_on(tmp_path: Path) -> None:
    recipe = get_recipe("digits-linf-cnn-trades-2nd-released")
    recipe = replace(recipe, epochs=1, width=4, data=replace(recipe.data, train_size=300))
    recipe = replace(recipe, attack=replace(recipe.attack, steps=1), keep_checkpoints="none")
    assert read_checkpoint(fit(recipe, tmp_path, log="none").checkpoint("last")).progress["step"] == 3
