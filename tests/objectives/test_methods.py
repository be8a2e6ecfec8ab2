"""Every registered method beside a literal twin: the formula in plain loops, as slow and as clear as it gets.

A method joins by a row in TWINS; that it trains, resumes and is evaluated by its name follows from the registry.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rattle
from rattle.errors import RattleError
from rattle.forward import Outputs, PairedForward
from rattle.objectives import ALP, AT, S2OAT, LabelSmoothing, Mart, S2OTrades, Taylor, Trades
from rattle.objectives.avmixup import AVMixup
from rattle.objectives.base import StepContext, total
from rattle.objectives.dkl import DKL
from rattle.objectives.fat import EarlyStop
from rattle.objectives.fat_trades import FATTrades
from rattle.objectives.free import Free
from rattle.objectives.gat import Guide
from rattle.objectives.gowal import Gowal
from rattle.objectives.hat import HAT
from rattle.objectives.kd_swa import KD
from rattle.objectives.lbgat import LBGAT
from rattle.objectives.mma import MMA
from rattle.objectives.n_fgsm import NFGSM
from rattle.objectives.rebat import ReBAT
from rattle.objectives.registry import METHODS
from rattle.objectives.rslad import RSLAD
from rattle.recipes.catalog import describe, get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import Piecewise
from rattle.runs.paths import Run
from rattle.training.loop import fit
from rattle.training.step import StepInputs, step
from rattle.weights import ASAM, AWP, SAM, Noise
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


def smoothing_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    loss, others = torch.zeros(()), z.shape[1] - 1
    for i, k in enumerate(y):
        log_q = z_adv[i].log_softmax(0)
        loss = loss - sum((0.8 if j == k else 0.2 / others) * log_q[j] for j in range(others + 1))
    return loss / len(y)


def sota_twin(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    loss, classes = torch.zeros(()), z.shape[1]
    for i, k in enumerate(y):
        log_p = z[i].log_softmax(0)
        q = [0.1 / classes + (0.9 if j == k else 0) for j in range(classes)]
        loss = loss - sum(q[j] * log_p[j] for j in range(classes)) + 5 * kl_of(z[i].softmax(0), z_adv[i].softmax(0))
    return loss / len(y)


def standard(z: Tensor, z_adv: Tensor, y: list[int]) -> Tensor:
    """-log p_y at the images it is given as x', which training makes x."""
    return -torch.stack([row.log_softmax(0)[label] for row, label in zip(z_adv, y, strict=True)]).mean()


TWINS = {
    "at": at_twin,
    "trades": trades_twin,
    "mart": mart_twin,
    "s2o-at": lambda z, z_adv, y: 0.9 * at_twin(z, z_adv, y) + 0.1 * s2o_twin(z, z_adv, y),
    "s2o-trades": s2o_trades_twin,
    "alp": alp_twin,
    "label-smoothing": smoothing_twin,
    "rice": at_twin,
    "pang": trades_twin,
    "gowal": trades_twin,
    "sota": sota_twin,
    "standard": standard,
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
    torch.testing.assert_close(loss, wanted, rtol=1e-9, atol=0)
    parameters = list(model.parameters())
    gradients, plain = torch.autograd.grad(loss, parameters), torch.autograd.grad(wanted, parameters)
    for g, h in zip(gradients, plain, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-6, atol=1e-9)


def test_mart_without_its_offset_is_the_formula_and_stays_finite_for_a_sure_mistake() -> None:
    z = torch.tensor([[-400.0, 400.0, 0.0]], requires_grad=True)
    y = torch.tensor([0])
    for offset, wanted in ((0.0, 400 + 800), (1e-4, 800 - math.log(1e-4))):  # -log p_y is 800, 1 - p_1 is e^-400
        loss = Mart(offset=offset)(Outputs(z, z), y)["bce"]
        assert float(loss.detach()) == pytest.approx(wanted, rel=1e-5)
        assert torch.autograd.grad(loss, z)[0].isfinite().all()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("objective", [S2OAT(), S2OTrades()])
def test_two_ranks_compute_the_soft_labels_of_the_whole_batch(objective: S2OAT | S2OTrades) -> None:
    z, z_adv, y = torch.randn(8, 5), torch.randn(8, 5), torch.arange(8) % 5
    halves = [(Outputs(z[part], z_adv[part]), y[part]) for part in (slice(0, 4), slice(4, 8))]
    seen = []
    for outputs, labels in halves:
        objective.terms(outputs, labels, StepContext(reduce=lambda rows: seen.extend(rows.values()) or dict(rows)))
    whole = StepContext(reduce=lambda rows: dict.fromkeys(rows, torch.stack(seen).mean(0)))
    losses = [total(objective.terms(outputs, labels, whole)) for outputs, labels in halves]
    torch.testing.assert_close(torch.stack(losses).mean(), total(objective(Outputs(z, z_adv), y)))


def test_soft_labels_of_s2o_carry_no_gradient() -> None:
    z, y = torch.randn(6, 4, requires_grad=True), torch.arange(6) % 4
    terms = S2OAT(share=0.5)(Outputs(z, z.detach()), y)
    labels = torch.tensor(s2o_labels(z))[y]
    wanted = 0.25 * (z.detach().softmax(1) - labels) / len(y)  # d KL(t || p(z)) / dz = p - t
    torch.testing.assert_close(torch.autograd.grad(terms["statistics"], z)[0], wanted)


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
        t |= {name: p.detach().abs() + kind.eta for name, p in parameters.items() if "bias" not in name}
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
    given = StepInputs(
        x=x,
        y=y,
        forward=PairedForward(model, objective.needs),
        attack=lambda *_, generator: x_adv,
        noise=Noise(sigma=0),
        objective=objective,
        awp=kind,
        context=StepContext(),
        shared=torch.Generator(),
    )
    for _ in range(2):
        optimizer.zero_grad()
        step(given)
        optimizer.step()
        plain_sharpness_step(twin, velocity, lambda: rattle.compute_loss(objective, twin, x, x_adv, y), kind)
    assert int(model[1].num_batches_tracked) == 2 * (1 + objective.needs.clean)  # none in the pass at w + v
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-6, atol=1e-9)


def test_sam_moves_by_rho_along_the_gradient_of_all_weights() -> None:
    model, x, _, y = case(3)
    sam = SAM(rho=0.2)
    d = sam.gradients(model, lambda: nn.functional.cross_entropy(model(x), y))
    v = sam(model, d)
    assert set(v) == {name for name, _ in model.named_parameters()}
    assert float(torch.cat([each.flatten() for each in v.values()]).norm()) == pytest.approx(0.2, rel=1e-5)
    assert all(torch.cosine_similarity(v[name].flatten(), d[name].flatten(), 0) > 0.999 for name in v)


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
    assert get_recipe("cifar10-linf-preact18-mart-awp").awp == AWP(gamma=0.005, warmup=10)
    assert get_recipe("cifar100-l2-preact18-s2o-trades-awp").awp == AWP(gamma=0.005, warmup=10)
    assert get_recipe("digits-linf-cnn-s2o-at-awp-2nd").method == "AT-S2O-AWP + 1st + 2nd"
    assert get_recipe("digits-linf-cnn-mart-sam").awp == SAM()
    assert get_recipe("digits-linf-cnn-at-asam-2nd").method == "AT-ASAM + 1st + 2nd"
    assert describe("cifar10-linf-preact18-trades-asam").startswith("TRADES-ASAM (Zhang et al. 2019, Kwon et al. 2021)")
    assert describe("cifar10-linf-preact18-pang") == "TRADES (Pang et al. 2021); linf 0.03137, 110 epochs"
    pang = get_recipe("cifar10-linf-wrn34-10-pang")
    assert pang.schedule == Piecewise(drops=(100 / 110, 105 / 110))
    assert [pang.schedule(epoch / pang.epochs) for epoch in (99, 100, 105)] == pytest.approx([1, 0.1, 0.01])
    rice, at = (get_recipe(f"cifar10-linf-preact18-{name}") for name in ("rice", "at"))
    assert replace(rice, name=at.name) == at


def test_a_recipe_saved_when_awp_was_the_only_kind_still_opens() -> None:
    text = get_recipe("digits-linf-cnn-trades-awp").to_yaml()
    assert "  kind: AWP\n" in text
    assert Recipe.from_yaml(text.replace("  kind: AWP\n", "")).awp == AWP(gamma=0.005, warmup=5)


def test_sharpness_is_chosen_on_the_command_line_by_its_kind(tmp_path: Path) -> None:
    from rattle.cli.train import with_options

    words = ["--awp.kind", "SAM", "--awp.rho", "0.1"]
    _, recipe = with_options(get_recipe("digits-linf-cnn-trades"), words, "train")
    assert recipe.awp == SAM(rho=0.1)
    assert recipe.method == "TRADES-SAM"


REFUSED = [
    (Trades, {"inv_lambda": -6.0}),
    (FATTrades, {"inv_lambda": -6.0}),
    (Mart, {"weight": -1.0}),
    (Mart, {"offset": math.nan}),
    (ALP, {"weight": -0.5}),
    (S2OAT, {"share": 1.0}),
    (S2OTrades, {"share": 0.0}),
    (LabelSmoothing, {"smoothing": 1.2}),
    (Gowal, {"smoothing": 1.0}),
    (AVMixup, {"gamma": 0.5}),
    (AVMixup, {"lambda1": 1.5}),
    (EarlyStop, {"tau": -1}),
    (EarlyStop, {"raise_at": (0.5, 1.5)}),
    (EarlyStop, {"omega": -0.1}),
    (Guide, {"weight": -1.0}),
    (Guide, {"late_from": 85.0}),
    (Guide, {"step": 0.0}),
    (NFGSM, {"noise": -1.0}),
    (Free, {"replays": 0}),
    (Free, {"step": 0.0}),
    (MMA, {"start": 0.0}),
    (MMA, {"start": 5.0}),
    (MMA, {"search_steps": 0}),
    (MMA, {"clean_weight": 1.0}),
    (DKL, {"temperature": 0.0}),
    (DKL, {"gamma": -1.0}),
    (HAT, {"h": 1.0}),
    (KD, {"temperature": 0.0}),
    (KD, {"smoothing": 1.0}),
    (LBGAT, {"beta": -1.0}),
    (RSLAD, {"alpha": 2.0}),
    (ReBAT, {"weight": -1.0}),
    (SAM, {"rho": 0.0}),
    (ASAM, {"rho": -1.0}),
    (ASAM, {"eta": -0.1}),
    (SAM, {"warmup": -1}),
]


@pytest.mark.parametrize(("kind", "setting"), REFUSED)
def test_settings_that_mean_nothing_are_refused(kind: type, setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(RattleError, match=rf"^(objective|objective\.stop|objective\.guide|awp)\.{name} must be "):
        kind(**setting)


@pytest.mark.parametrize("name", ["alp-awp", "rslad-2nd", "at-sam-2nd-released"])
def test_variants_that_a_method_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(RattleError, match=r"variant|released"):
        get_recipe(f"digits-linf-cnn-{name}")


def test_s2o_needs_three_classes() -> None:
    with pytest.raises(RattleError, match="3 classes, got 2"):
        S2OAT()(Outputs(torch.randn(2, 2), torch.randn(2, 2)), torch.tensor([0, 1]))
