"""What is measured: library steps and attacks, each beside the plain twin that does the same the textbook way."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from rattle.attacks import PGD, AutoAttack
from rattle.bench import reference
from rattle.bench.setup import Subject, library_step, recipe_of
from rattle.models import find_head
from rattle.threat import Threat

Group = Literal["training", "evaluation", "autoattack"]
METHODS = {
    "AT": "at",
    "TRADES": "trades",
    "TRADES 1st": "trades-1st",
    "TRADES 1st+2nd": "trades-2nd",
    "TRADES-AWP 1st+2nd": "trades-awp-2nd",
}
PUBLISHED, AUTHORS = "TRADES as published", "1st+2nd as the authors run it"
PGD20, TEXTBOOK, TORCHATTACKS = "PGD-20", "PGD-20, textbook loop", "PGD-20, torchattacks"
COMPONENTS = ("apgd-ce", "apgd-t", "fab-t", "square")
STEPS, TARGETS, QUERIES = 10, 3, 30  # both sides of AutoAttack are shortened to these
THREAT = Threat(epsilon=2 / 255)  # small, so that not every image of an untrained network breaks at once


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time. `short` does the same with two inner steps: its peak memory is that of the whole."""

    group: Group
    kind: Literal["ours", "reference"]
    run: Callable[[], object]
    short: Callable[[], object] | None = None
    resident: int = 0  # bytes held before and after the call that belong to it: weights and momentum


def training(subject: Subject) -> dict[str, Case]:
    """A step of every method, and two reference steps."""
    resident, found = subject.resident(), {}
    for name, method in METHODS.items():
        run, short = library_step(subject, method), library_step(subject, method, steps=2)
        found[name] = Case("training", "ours", run, short, resident)
    for name, make in ((PUBLISHED, published_step), (AUTHORS, authors_step)):
        found[name] = Case("training", "reference", make(subject), make(subject, steps=2), resident)
    return found


def published_step(subject: Subject, *, steps: int | None = None) -> Callable[[], None]:
    """TRADES as its authors published it: the clean forward again at every inner step."""
    recipe, model = recipe_of(subject.setup, "trades", steps=steps), copy.deepcopy(subject.plain)
    optimizer = plain_optimizer(model)
    x, y, attack = subject.x_plain, subject.y, recipe.attack

    def run() -> None:
        with subject.autocast:
            x_adv = reference.published_inner_loop(
                model,
                x,
                epsilon=attack.threat.epsilon,
                step_size=attack.step_size,
                steps=attack.steps,
                draws=subject.streams(),
            )
            optimizer.zero_grad()
            loss = reference.published_trades(model, x, x_adv, y, inv_lambda=6.0)
        loss.backward()
        optimizer.step()

    return run


def authors_step(subject: Subject, *, steps: int | None = None) -> Callable[[], None]:
    """The authors' algorithm, literally."""
    recipe, model = recipe_of(subject.setup, "trades-2nd-released", steps=steps), copy.deepcopy(subject.plain)
    optimizer, head, attack = plain_optimizer(model), find_head(model), recipe.attack

    def run() -> None:
        optimizer.zero_grad()
        with subject.autocast:
            reference.released_step(
                model,
                head,
                subject.x_plain,
                subject.y,
                epsilon=attack.threat.epsilon,
                step_size=attack.step_size,
                steps=attack.steps,
                sigma=recipe.noise.sigma,
                eta=recipe.objective.eta,
                draws=subject.streams(),
                generator=torch.Generator().manual_seed(0),
            )
        optimizer.step()

    return run


def plain_optimizer(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=5e-4)


def evaluation(subject: Subject) -> dict[str, Case]:
    """PGD-20 (epsilon 0.031, step 0.003, the paper's), the textbook loop, and torchattacks' where it is installed."""
    weights = subject.resident() // 2

    def ours(steps: int) -> Callable[[], object]:
        attack, model = PGD(threat=Threat(epsilon=0.031), step_size=0.003, steps=steps), subject.fast.eval()
        if subject.setup.compile:
            model.compile()
        x = subject.x
        return lambda: with_autocast(subject, attack, model, x, subject.y, generator=subject.streams())

    def textbook(steps: int) -> Callable[[], object]:
        model = copy.deepcopy(subject.plain).eval()
        settings = {"epsilon": 0.031, "step_size": 0.003, "steps": steps}
        return lambda: with_autocast(subject, reference.textbook_pgd, model, subject.x_plain, subject.y, **settings)

    found = {
        PGD20: Case("evaluation", "ours", ours(20), ours(2), weights),
        TEXTBOOK: Case("evaluation", "reference", textbook(20), textbook(2), weights),
    }
    if find_spec("torchattacks") is not None:

        def theirs(steps: int) -> Callable[[], object]:
            make = import_module("torchattacks").PGD
            attack = make(copy.deepcopy(subject.plain).eval(), eps=0.031, alpha=0.003, steps=steps)
            return lambda: with_autocast(subject, attack, subject.x_plain, subject.y)

        found[TORCHATTACKS] = Case("evaluation", "reference", theirs(20), theirs(2), weights)
    return found


def with_autocast(subject: Subject, call: Callable[..., object], *args: Any, **settings: Any) -> object:
    with subject.autocast:
        return call(*args, **settings)


def autoattack(subject: Subject) -> dict[str, Case]:
    """Each component on the same images, shortened the same way; pyautoattack where it is installed."""
    model, weights, found = subject.fast.eval(), subject.resident() // 2, {}
    x, y = subject.x, subject.y
    for name, attack in AutoAttack(threat=THREAT).components().items():
        run = component(subject, shortened(attack, STEPS, QUERIES), model, x)
        found[name] = Case("autoattack", "ours", run, component(subject, shortened(attack, 2, 2), model, x), weights)
    if find_spec("pyautoattack") is not None:
        whole, brief = (
            pyautoattack_components(subject.plain, STEPS, QUERIES),
            pyautoattack_components(subject.plain, 2, 2),
        )
        x_plain = subject.x_plain
        for name in COMPONENTS:
            run, short = (
                lambda perturb=parts[name]: with_autocast(subject, perturb, x_plain.clone(), y.clone())
                for parts in (whole, brief)
            )
            found[f"{name}, pyautoattack"] = Case("autoattack", "reference", run, short, weights)
    return found


def component(subject: Subject, attack: Any, model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    return lambda: with_autocast(subject, attack, model, x, subject.y, generator=subject.streams())


def shortened(attack: Any, steps: int, queries: int) -> Any:
    """A component with fewer steps and targets."""
    if hasattr(attack, "queries"):
        return replace(attack, queries=queries)
    return replace(attack, steps=steps, targets=TARGETS)


def pyautoattack_components(plain: nn.Module, steps: int, queries: int) -> dict[str, Callable[..., object]]:
    """pyautoattack's standard components, shortened."""
    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    model, make = copy.deepcopy(plain).eval(), import_module("pyautoattack.autoattack").AutoAttack
    device = next(plain.parameters()).device
    whole = make(model, norm="Linf", eps=THREAT.epsilon, seed=0, version="standard", device=device)
    whole.apgd.loss, whole.fab.targeted = "ce", True
    parts = dict(zip(COMPONENTS, (whole.apgd, whole.apgd_targeted, whole.fab, whole.square), strict=True))
    for part in parts.values():
        part.seed, part.n_iter, part.n_queries, part.n_target_classes = 0, steps, queries, TARGETS
    return {name: torch.no_grad()(part.perturb) for name, part in parts.items()}


def all_cases(subject: Subject, groups: tuple[Group, ...]) -> dict[str, Case]:
    makers = {"training": training, "evaluation": evaluation, "autoattack": autoattack}
    return {name: case for group in groups for name, case in makers[group](subject).items()}
