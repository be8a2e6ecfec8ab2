"""AutoAttack: the reference's components and settings, its results, and the ensembles that are less than it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
import torch
from pyautoattack.autoattack import AutoAttack as Reference
from torch import Tensor, nn

from rattle.attacks import APGD, FAB, PGD, AttackSequence, AutoAttack, Square
from rattle.attacks.base import attack_mode
from rattle.attacks.registry import get_attack
from rattle.attacks.rows import spawn
from rattle.data.registry import Data, batches
from rattle.errors import RattleError
from rattle.inputs import to_float
from rattle.models.registry import create_model
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from support.attack_cases import NORMS, linear, robust, robust_after
from support.precision import in_double

THEIRS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
def test_components_and_settings_are_the_references(norm, version) -> None:
    theirs = Reference(nn.Identity(), norm=THEIRS[norm], eps=0.1, seed=0, version=version)
    mine = AutoAttack(threat=Threat(norm=norm, epsilon=0.1), version=version).components()
    assert list(mine) == theirs.attacks_to_run
    for name, attack in mine.items():
        if isinstance(attack, APGD):
            part = theirs.apgd_targeted if name == "apgd-t" else theirs.apgd
            assert attack.loss == {"apgd-ce": "ce", "apgd-dlr": "dlr", "apgd-t": "dlr-targeted"}[name]
            assert (attack.steps, attack.restarts, attack.rho) == (part.n_iter, part.n_restarts, part.thr_decr)
            assert (attack.eot, attack.eps_schedule) == (part.eot_iter, part.use_largereps)
            assert name != "apgd-t" or attack.targets == part.n_target_classes
        elif isinstance(attack, FAB):
            part = theirs.fab
            assert (attack.steps, attack.alpha_max) == (part.n_iter, part.alpha_max)
            assert (attack.overshoot, attack.backward) == (part.eta, part.beta)
            assert attack.targets == (part.n_target_classes if name == "fab-t" else 0)
            assert attack.restarts == (1 if name == "fab-t" else part.n_restarts)
        else:
            assert isinstance(attack, Square)
            assert (attack.queries, attack.p_init) == (theirs.square.n_queries, theirs.square.p_init)
            assert attack.restarts == theirs.square.n_restarts


def test_the_smoke_ensemble_is_every_component_with_a_tenth_of_the_steps() -> None:
    short, whole = (get_attack(name, Threat()).components() for name in ("smoke-ensemble", "autoattack"))
    assert list(short) == list(whole)
    assert short["square"].queries <= whole["square"].queries // 10
    for name in ("apgd-ce", "apgd-t", "fab-t"):
        assert short[name].steps == whole[name].steps // 10
        assert type(short[name]) is type(whole[name])


def test_apgd_ce_and_t_are_the_first_two_components() -> None:
    threat = Threat(epsilon=0.1)
    whole, pair = AutoAttack(threat=threat).components(), get_attack("apgd-ce+t", threat).components()
    assert pair == {name: whole[name] for name in ("apgd-ce", "apgd-t")}
    assert get_attack("autoattack", threat) == AutoAttack(threat=threat)


def test_a_sequence_needs_attacks_on_one_threat() -> None:
    for attacks in ({}, {"a": PGD(), "b": PGD(threat=Threat(epsilon=0.1))}):
        with pytest.raises(RattleError, match="at least one attack, and the same threat"):
            AttackSequence(attacks)


@pytest.mark.parametrize(
    "norm", ["linf", pytest.param("l2", marks=pytest.mark.slow), pytest.param("l1", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("classes", [2, 5])
def test_the_result_on_a_linear_model_is_exact(norm, classes) -> None:
    case = linear(classes, n=8)
    threat = case.threat(norm)
    assert torch.equal(robust_after(get_attack("apgd-ce+t", threat), case), case.distance[norm] > threat.epsilon)


def test_only_unbroken_images_meet_the_next_component() -> None:
    case = linear(4, n=12)
    threat = case.threat("linf")
    attack = get_attack("apgd-ce+t", threat)
    draws = ImageStreams(0, torch.arange(12))
    flags = torch.ones(12, dtype=torch.bool)
    for number, part in enumerate(attack.components().values()):
        rows = flags.nonzero().squeeze(1)
        x_adv = part(case.model, case.x[rows], case.y[rows], generator=spawn(draws[rows], number))
        flags[rows] = robust(case.model, x_adv, case.y[rows])
    whole = attack(case.model, case.x, case.y, generator=draws)
    assert torch.equal(robust(case.model, whole, case.y), flags)


@cache
def trained(steps: int, width: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A small CNN after a little adversarial training on the digits, the same one on every CPU; test images."""
    torch.manual_seed(0)
    with in_double():
        data, model = Data().load(), create_model("cnn", classes=10, channels=1, width=width)
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        attack, done = PGD(threat=Threat(epsilon=0.15), steps=2, step_size=0.1), 0
        while done < steps:
            for index in batches(len(data.train), 64, seed=0, epoch=done):
                x, y = to_float(data.train.x[index]), data.train.y[index]
                loss = nn.functional.cross_entropy(model.train()(attack(model, x, y)), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                done += 1
    return model.float().eval(), to_float(data.test.x), data.test.y


def shortened(attack, steps: int, queries: int, targets: int):
    if isinstance(attack, Square):
        return replace(attack, queries=queries)
    return replace(attack, steps=steps, **({"targets": targets} if attack.targets else {}))


def flags_of_both(
    norm: str, epsilon: float, name: str, case, *, n: int, steps: int, queries: int, targets: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Robust flags of our component and of the reference's, both with the same few steps, [n] each."""
    model, x, y = case
    x, y = x[:n], y[:n]
    threat = Threat(norm=norm, epsilon=epsilon)  # type: ignore[arg-type]
    version = "plus" if name in ("apgd-dlr", "fab") else "standard"
    mine = shortened(AutoAttack(threat=threat, version=version).components()[name], steps, queries, targets)
    theirs = Reference(model, norm=THEIRS[norm], eps=epsilon, seed=seed, version=version)
    theirs.attacks_to_run = [name]
    for part in (theirs.apgd, theirs.apgd_targeted, theirs.fab):
        part.n_iter = part.n_iter_orig = steps
        part.n_iter_2, part.n_iter_min, part.size_decr = (max(int(s * steps), 1) for s in (0.22, 0.06, 0.03))
    theirs.apgd_targeted.n_target_classes = theirs.fab.n_target_classes = targets
    theirs.square.n_queries = queries
    x_adv = mine(model, x, y, generator=ImageStreams(seed, torch.arange(n)))
    assert threat.contains(x_adv, x).all()
    with attack_mode(model):
        x_ref, _ = theirs.run_standard_evaluation(x, y, batch_size=n)
    return robust(model, x_adv, y), robust(model, x_ref.detach(), y)


RADII = {"linf": 0.15, "l2": 0.6, "l1": 1.5}


@pytest.mark.parametrize(
    ("norm", "name"), [("linf", "apgd-t"), ("linf", "fab-t"), ("linf", "square"), ("l2", "fab-t"), ("l1", "apgd-ce")]
)
def test_short_runs_agree_with_the_reference(norm, name) -> None:
    """On 200 images: from another start, or on another CPU, the reference decides on some of them otherwise."""
    case = trained(40, 8)
    mine, theirs = flags_of_both(norm, RADII[norm], name, case, n=200, steps=20, queries=150, targets=2)
    assert 0.1 < theirs.float().mean() < 0.95
    assert (mine == theirs).float().mean() >= (0.9 if name == "square" else 0.95)
    assert mine.float().mean() <= theirs.float().mean() + 1 / 40


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"])
def test_each_component_agrees_with_the_reference(norm, name) -> None:
    """Image by image as well as the reference agrees with itself from another start; FAB starts at the image."""
    case, starts = trained(300, 16), 1 if name.startswith("fab") else 3
    settings = {"n": 200, "steps": 100, "queries": 1000, "targets": 9}
    found = [flags_of_both(norm, RADII[norm], name, case, seed=seed, **settings) for seed in range(starts)]
    mine, theirs = (torch.stack(flags) for flags in zip(*found, strict=True))
    assert 0.2 < theirs.float().mean() < 0.9
    usual = 0.94 if norm == "l1" else 0.97
    itself = [alike(a, b) for a, b in combinations(theirs, 2)] or [1.0]
    assert alike(mine, theirs) >= min(usual, sum(itself) / len(itself) - 0.015)
    assert mine.float().mean() <= theirs.float().mean() + 0.02


def alike(a: Tensor, b: Tensor) -> float:
    return float((a == b).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_autoattack_agrees_with_the_reference_image_by_image(seed) -> None:
    model, x, y = trained(300, 16)
    x, y = x[:200], y[:200]
    threat = Threat(epsilon=0.15)
    x_adv = AutoAttack(threat=threat)(model, x, y, generator=ImageStreams(seed, torch.arange(200)))
    with attack_mode(model):
        x_ref, _ = Reference(model, norm="Linf", eps=0.15, seed=seed).run_standard_evaluation(x, y, batch_size=200)
    mine, theirs = robust(model, x_adv, y), robust(model, x_ref.detach(), y)
    assert (mine == theirs).float().mean() >= 0.99
    assert mine.float().mean() <= theirs.float().mean() + 0.005
