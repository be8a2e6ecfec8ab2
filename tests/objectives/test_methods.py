"""Every registered method beside a literal twin: the formula in plain loops, as slow and as clear as it gets.

A method joins by a row in TWINS; that it trains, resumes and is evaluated by its name follows from the registry.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rattle
from rattle.errors import RattleError
from rattle.forward import Outputs
from rattle.objectives import AT, Mart, Taylor, Trades
from rattle.objectives.base import StepContext
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import describe_recipe, get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.paths import Run
from rattle.training.loop import fit
from rattle.training.step import step
from rattle.weights import ASAM, AWP, EMA, SAM, SWA
from support.steps import assert_same_gradient, step_inputs
from support.training import Interrupting, Stop, content, tiny


def kl_of(p: Tensor, q: Tensor) -> Tensor:
    return sum((p[j] * (p[j].log() - q[j].log()) for j in range(len(p))), torch.zeros(()))


def at_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    return sum(-z_adv[i].softmax(0)[k].log() for i, k in enumerate(y)) / len(y)


def trades_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    pairs = [(z[i].softmax(0), z_adv[i].softmax(0), k) for i, k in enumerate(y)]
    return sum(-p[k].log() + 6 * kl_of(p, q) for p, q, k in pairs) / len(y)


def mart_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    loss = torch.zeros(())
    for i, k in enumerate(y):
        p, q = z[i].softmax(0), z_adv[i].softmax(0)
        bce = -q[k].log() - (1.0001 - max(q[j] for j in range(len(q)) if j != k)).log()
        loss = loss + bce + 5 * kl_of(p, q) * (1 - p[k])
    return loss / len(y)


def s2o_labels(z: Tensor) -> list[list[float]]:
    """-|A| shifted by each row's least entry, the diagonal left out, scaled to 1 - 2/C; 2/C on the diagonal."""
    rows, classes = z.detach().tolist(), z.shape[1]
    labels = []
    for a in range(classes):
        row = [-abs(sum(image[a] * image[b] for image in rows)) for b in range(classes)]
        others = [entry - min(row) if b != a else 0 for b, entry in enumerate(row)]
        labels.append([2 / classes if b == a else (1 - 2 / classes) * others[b] / sum(others) for b in range(classes)])
    return labels


def s2o_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    loss = torch.zeros(())
    for logits in (z, z_adv):
        labels = s2o_labels(logits)
        for i, k in enumerate(y):
            p = logits[i].softmax(0)
            loss = loss + 0.5 * sum(t * (math.log(t) - p[j].log()) for j, t in enumerate(labels[k]) if t > 0)
    return loss / len(y)


def s2o_trades_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    clean, both = at_twin(z_adv, z, y), trades_twin(z, z_adv, y)
    return 0.7 * clean + (both - clean) + 0.3 * s2o_twin(z, z_adv, y)


def alp_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    joined = [*z, *z_adv]  # one batch of 2n
    ce = sum(-row.softmax(0)[k].log() for row, k in zip(joined, y + y, strict=True)) / len(joined)
    pairing = sum((z[i, j] - z_adv[i, j]) ** 2 for i, j in product(range(len(y)), range(z.shape[1]))) / z.numel()
    return ce + 0.5 * pairing


def smoothed_ce(z: Tensor, y: list[int], true: float, other: float) -> Tensor:
    loss = torch.zeros(())
    for log_p, k in zip(z.log_softmax(1), y, strict=True):
        loss = loss - true * log_p[k] - other * (log_p[:k].sum() + log_p[k + 1 :].sum())
    return loss / len(y)


def sota_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    share = 0.1 / z.shape[1]
    divergences = [kl_of(p, q) for p, q in zip(z.softmax(1), z_adv.softmax(1), strict=True)]
    return smoothed_ce(z, y, 0.9 + share, share) + 5 * sum(divergences) / len(y)


TWINS = {
    "at": at_twin,
    "trades": trades_twin,
    "mart": mart_twin,
    "s2o-at": lambda z, z_adv, y: 0.9 * at_twin(z, z_adv, y) + 0.1 * s2o_twin(z, z_adv, y),
    "s2o-trades": s2o_trades_twin,
    "alp": alp_twin,
    "label-smoothing": lambda z, z_adv, y: smoothed_ce(z_adv, y, 0.8, 0.2 / (z.shape[1] - 1)),
    "rice": at_twin,
    "pang": trades_twin,
    "gowal": trades_twin,
    "sota": sota_twin,
    "standard": at_twin,  # whose x' training makes x
}
OWN = [name for name, method in METHODS.items() if type(method.objective).__module__.startswith("rattle.")]
TEACHERS = {name: torch.eye(6, 4) for name in ("natural", "standard", "robust")}
BESIDES: Any = {"extra": torch.eye(6, 4), "taught_clean": TEACHERS, "taught_adv": TEACHERS}  # for those that ask
TAYLOR = [name for name in OWN if hasattr(METHODS[name].objective, "taylor")]


def case(classes: int, *, n: int = 12) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network with BatchNorm, images x and x', labels."""
    torch.manual_seed(classes)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, classes))
    with torch.no_grad():
        model[-1].weight.mul_(4)  # sure of some images, right or wrong
    return model.train(), torch.rand(n, 1, 4, 4), torch.rand(n, 1, 4, 4), torch.arange(n) * 7 % classes


@pytest.mark.parametrize("name", OWN)
def test_every_method_has_its_twin_here_or_in_a_file_of_its_own(name: str) -> None:
    base = name.removesuffix("-trades").replace("-", "_")
    assert name in TWINS or (Path(__file__).parent / f"test_{base}.py").exists()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("name", "classes"), list(product(TWINS, [3, 10, 100])))
def test_loss_and_gradient_are_those_of_the_twin(name: str, classes: int) -> None:
    model, x, x_adv, y = case(classes)
    loss = rattle.compute_loss(METHODS[name].objective, model, x, x_adv, y)
    wanted = TWINS[name](model(x), model(x_adv), y.tolist())
    assert_same_gradient(loss, wanted, model.parameters())


def test_mart_stays_finite_for_a_sure_mistake() -> None:
    z = torch.tensor([[-400.0, 400.0, 0.0]], requires_grad=True)
    loss = Mart()(Outputs(z, z), torch.tensor([0]))["bce"]
    assert float(loss.detach()) == pytest.approx(800 - math.log(1e-4), rel=1e-5)  # -log p_y is 800, 1 - p_1 is e^-400
    assert torch.autograd.grad(loss, z)[0].isfinite().all()


@pytest.mark.parametrize(("name", "order"), list(product(TAYLOR, [1, 2])))
def test_the_taylor_terms_are_added_to_every_method(name: str, order: int) -> None:
    z, z_adv, h, h_adv = torch.randn(6, 4), torch.randn(6, 4), torch.randn(6, 5), torch.randn(6, 5)
    outputs, y, base = Outputs(z, z_adv, h, h_adv, **BESIDES), torch.arange(6) % 4, METHODS[name].objective
    terms = replace(base, taylor=Taylor(order=order))(outputs, y)
    wanted = base(outputs, y) | Taylor(order=order)(outputs, y, StepContext())
    assert list(terms) == list(wanted)
    assert list(terms)[-order:] == ["first", "second"][:order]
    assert all(torch.equal(terms[key], wanted[key]) for key in terms)


@pytest.mark.parametrize("name", TAYLOR)
def test_the_mode_sampled_averages_every_method_over_u(name: str) -> None:
    pairs, y = tuple((torch.randn(6, 4), torch.randn(6, 4)) for _ in range(2)), torch.arange(6) % 4
    objective = replace(METHODS[name].objective, taylor=Taylor(order=1, mode="sampled"))
    z, z_adv = pairs[0]
    both = objective(Outputs(z, z_adv, sampled=pairs, **BESIDES), y)["zeroth"]
    each = [objective(Outputs(*pair, sampled=(pair,), **BESIDES), y)["zeroth"] for pair in pairs]
    torch.testing.assert_close(both, torch.stack(each).mean())


def plain_sharpness_step(
    model: nn.Module, velocity: list[Tensor], loss: Callable[[], Tensor], kind: SAM | ASAM
) -> None:
    """Gradient at w, w moved by v, gradient there, w put back, SGD with momentum: BatchNorm remembers w alone."""
    parameters = dict(model.named_parameters())
    d = dict(zip(parameters, torch.autograd.grad(loss(), list(parameters.values())), strict=True))
    t = {name: torch.ones_like(p) for name, p in parameters.items()}
    if isinstance(kind, ASAM):
        t |= {name: p.detach().abs() + 0.01 for name, p in parameters.items() if "bias" not in name}
    norm = math.sqrt(sum(float(((t[name] * d[name]) ** 2).sum()) for name in d))
    before, statistics = copy.deepcopy(model.state_dict()), {name: b.clone() for name, b in model.named_buffers()}
    with torch.no_grad():
        for name, p in parameters.items():
            p += kind.rho * t[name] ** 2 * d[name] / norm
    g = torch.autograd.grad(loss(), list(parameters.values()))
    model.load_state_dict(before | statistics)
    with torch.no_grad():
        for p, v, grad in zip(parameters.values(), velocity, g, strict=True):
            v.mul_(0.9).add_(grad)
            p -= 0.1 * v


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("kind", "objective"), list(product([SAM(rho=0.3), ASAM()], [AT(), Trades(), Mart()])))
def test_steps_with_sam_and_asam_are_those_of_the_twin(kind: SAM | ASAM, objective: AT | Trades | Mart) -> None:
    model, x, x_adv, y = case(3)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    velocity = [torch.zeros_like(p) for p in twin.parameters()]
    given = step_inputs(model, objective, lambda *_, generator: x_adv, x, y, StepContext(), awp=kind)
    for _ in range(2):
        optimizer.zero_grad()
        step(given)
        optimizer.step()
        plain_sharpness_step(twin, velocity, lambda: rattle.compute_loss(objective, twin, x, x_adv, y), kind)
    assert int(model[1].num_batches_tracked) == 2 * (1 + objective.needs.clean)  # none in the pass at w + v
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-6, atol=1e-9)


def quick(method: str) -> Recipe:
    recipe = tiny(method)
    return replace(recipe, attack=replace(recipe.attack, steps=1), val_attack=replace(recipe.val_attack, steps=1))


# AT and TRADES are trained in every other test of training; rice and pang are settings of theirs.
NEW = [name for name in OWN if name not in ("at", "trades", "rice", "pang", "gowal", "sota")]
VARIANTS = ["trades-sam", "at-asam-2nd", "fat-trades-2nd", "n-fgsm-2nd", "dkl-2nd"]


@pytest.mark.parametrize("method", [*NEW, *VARIANTS])
def test_a_method_trains_by_its_name_resumes_bit_for_bit_and_is_evaluated(method: str, tmp_path: Path) -> None:
    recipe = quick(method)
    if recipe.replays > 1:
        recipe = replace(recipe, objective=replace(recipe.objective, replays=2))
    whole = fit(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        fit(recipe, tmp_path / "stopped", console=Interrupting(steps=2))
    resumed = fit(recipe, tmp_path / "stopped", resume=True)
    assert content(resumed) == content(whole)
    assert Recipe.from_yaml(Run(whole.folder).recipe.read_text()) == recipe
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8)
    assert "pgd1" in rattle.evaluate(rattle.load(str(whole.folder)), x, y, "pgd1", epsilon=0.2).attacks


def test_recipes_of_every_method_say_what_they_are() -> None:
    assert get_recipe("cifar100-l2-preact18-s2o-trades-awp").awp == AWP(gamma=0.005, warmup=10)
    asam = get_recipe("digits-linf-cnn-at-asam-2nd")
    assert (asam.awp, asam.method) == (ASAM(), "AT-ASAM + 1st + 2nd")
    assert "Pang et al. 2021" in describe_recipe("cifar10-linf-preact18-pang")
    pang = get_recipe("cifar10-linf-wrn34-10-pang")
    assert [pang.schedule(epoch / pang.epochs) for epoch in (99, 100, 105)] == pytest.approx([1, 0.1, 0.01])
    assert get_recipe("cifar10-linf-preact18-kd-swa").average == SWA(start=55 / 200)
    assert get_recipe("cifar10-linf-preact18-rebat").average == EMA(decay=0.999, start=105 / 200)
    rice, at = (get_recipe(f"cifar10-linf-preact18-{name}") for name in ("rice", "at"))
    assert replace(rice, name=at.name) == at


@pytest.mark.parametrize("name", OWN)
def test_numbers_that_mean_nothing_are_refused_by_name(name: str) -> None:
    objective = METHODS[name].objective
    for field in fields(objective):
        kind = type(getattr(objective, field.name))
        if kind in (int, float):
            with pytest.raises(RattleError, match=rf"^objective\.{field.name} must be "):
                replace(objective, **{field.name: math.nan if kind is float else -1})


@pytest.mark.parametrize("name", ["alp-awp", "rslad-2nd", "at-sam-2nd-released"])
def test_variants_that_a_method_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(RattleError, match=r"variant|released"):
        get_recipe(f"digits-linf-cnn-{name}")
