"""What is measured: library steps and attacks, each beside a plain reference that does the same the textbook way."""

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
from rattle.models import find_head
from rattle.objectives.taylor_terms import PUBLISHED_ETA
from rattle.threat import Threat
from reproduction.bench import reference
from reproduction.bench.measure import Call
from reproduction.bench.setup import Subject, library_step, recipe_of

Group = Literal["training", "evaluation", "autoattack"]
METHODS = {
    "AT": "at",
    "TRADES": "trades",
    "TRADES 1st": "trades-1st",
    "TRADES 1st+2nd": "trades-2nd",
    "TRADES-AWP 1st+2nd": "trades-awp-2nd",
}
PUBLISHED, AUTHORS = "TRADES as published", "1st+2nd as the authors run it"
AUTHORS_AWP = "AWP 1st+2nd as the authors run it"
PGD20, TEXTBOOK, TORCHATTACKS = "PGD-20", "PGD-20, textbook loop", "PGD-20, torchattacks"
PGD_EPSILON, PGD_STEP = 0.031, 0.003  # the paper's
COMPONENTS = ("apgd-ce", "apgd-t", "fab-t", "square")
STEPS, TARGETS, QUERIES = 10, 3, 30  # both sides of AutoAttack are shortened to these
THREAT = Threat(epsilon=2 / 255)  # small, so that not every image of an untrained network breaks at once


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time."""

    group: Group
    kind: Literal["ours", "reference"]
    run: Call
    short: Call  # the same with two inner steps: its peak memory is that of the whole
    resident: int = 0  # bytes held before and after the call that belong to it: weights and momentum


def cases_of(subject: Subject, groups: tuple[Group, ...]) -> dict[str, Case]:
    """Every case of the groups by its name."""
    makers = {"training": training, "evaluation": evaluation, "autoattack": autoattack}
    ours, found = {*METHODS, PGD20, *COMPONENTS}, {}
    weights = sum(p.numel() * p.element_size() for p in subject.plain.parameters())
    for group in groups:
        whole, short = makers[group](subject, short=False), makers[group](subject, short=True)
        resident = 2 * weights if group == "training" else weights  # attacks need no momentum
        for name, run in whole.items():
            found[name] = Case(group, "ours" if name in ours else "reference", run, short[name], resident)
    return found


def training(subject: Subject, *, short: bool) -> dict[str, Call]:
    """A step of every method, and three reference steps."""
    steps = 2 if short else None
    found: dict[str, Call] = {name: library_step(subject, method, steps=steps) for name, method in METHODS.items()}
    return found | {name: reference_step(subject, name, steps=steps) for name in (PUBLISHED, AUTHORS, AUTHORS_AWP)}


def reference_step(subject: Subject, name: str, *, steps: int | None = None) -> Call:
    """TRADES with the clean forward again at every inner step, or the authors' algorithms, literally, by plain SGD."""
    methods = {PUBLISHED: "trades", AUTHORS: "trades-2nd-released", AUTHORS_AWP: "trades-awp-2nd-released"}
    recipe = recipe_of(subject.setup, methods[name], steps=steps)
    model, attack, x, y = copy.deepcopy(subject.plain), recipe.attack, subject.x_plain, subject.y
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=5e-4)
    inner = {"epsilon": attack.threat.epsilon, "step_size": attack.step_size, "steps": attack.steps}

    def run() -> None:
        optimizer.zero_grad()
        draws, generator = subject.streams(), torch.Generator().manual_seed(0)
        with subject.autocast:
            if name == AUTHORS_AWP:
                method = {"gamma": 0.005, "eta": PUBLISHED_ETA[2], "draws": draws}
                reference.released_awp_step(model, find_head(model), x, y, optimizer, **method, **inner)
                return
            if name == PUBLISHED:
                x_adv = reference.published_inner_loop(model, x, **inner, draws=draws)
                reference.published_trades(model, x, x_adv, y, inv_lambda=6.0).backward()
            else:
                method = {"sigma": recipe.noise.sigma, "eta": PUBLISHED_ETA[2], "generator": generator}
                reference.released_step(model, find_head(model), x, y, **method, **inner, draws=draws)
        optimizer.step()

    return run


def evaluation(subject: Subject, *, short: bool) -> dict[str, Call]:
    """PGD-20 of the library, the textbook loop, and torchattacks' where it is installed."""
    steps, model, plain = 2 if short else 20, subject.fast.eval(), copy.deepcopy(subject.plain).eval()
    if subject.setup.compile:
        model.compile()
    x, y, settings = subject.x_plain, subject.y, {"epsilon": PGD_EPSILON, "step_size": PGD_STEP, "steps": steps}
    ours = PGD(threat=Threat(epsilon=PGD_EPSILON), step_size=PGD_STEP, steps=steps)
    found: dict[str, Call] = {
        PGD20: attack_call(subject, ours, model),
        TEXTBOOK: subject.autocast(lambda: reference.textbook_pgd(plain, x, y, **settings)),
    }
    if find_spec("torchattacks") is not None:
        own = copy.deepcopy(plain)  # it changes the model's modes
        theirs = import_module("torchattacks").PGD(own, eps=PGD_EPSILON, alpha=PGD_STEP, steps=steps)
        found[TORCHATTACKS] = subject.autocast(lambda: theirs(x, y))
    return found


def autoattack(subject: Subject, *, short: bool) -> dict[str, Call]:
    """Each component on the same images, shortened the same way; pyautoattack's where it is installed."""
    model, (steps, queries) = subject.fast.eval(), (2, 2) if short else (STEPS, QUERIES)
    components: dict[str, Any] = AutoAttack(threat=THREAT).components()
    found = {}
    for name, attack in components.items():
        less = {"queries": queries} if hasattr(attack, "queries") else {"steps": steps, "targets": TARGETS}
        found[name] = attack_call(subject, replace(attack, **less), model)
    if find_spec("pyautoattack") is not None:
        x, y = subject.x_plain, subject.y
        for name, perturb in pyautoattack_components(subject.plain, steps, queries).items():
            found[f"{name}, pyautoattack"] = subject.autocast(lambda p=perturb: p(x.clone(), y.clone()))
    return found


def attack_call(subject: Subject, attack: Any, model: nn.Module) -> Call:
    x = subject.x
    return subject.autocast(lambda: attack(model, x, subject.y, generator=subject.streams()))


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
