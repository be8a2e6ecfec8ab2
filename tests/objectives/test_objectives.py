"""AT and TRADES by hand, the Taylor terms of each mode, and the forward they are made from."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs, PairedForward
from rattle.losses import kl
from rattle.models import find_head
from rattle.models.registry import create_model
from rattle.objectives import AT, Taylor, Trades
from rattle.taylor import head_gradient, soft_targets
from rattle.training.step import total
from rattle.weights import Noise, perturbed
from reproduction.bench.reference import rows_of_targets

Z, Z_ADV = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0], [0.0, 1.0, 0.0]])
Y = torch.tensor([0, 1])
CE_CLEAN = ((math.log(math.exp(2) + 2) - 2) + (math.log(math.exp(1) + 2) - 1)) / 2
CE_ADV = (math.log(math.exp(2) + 2) + (math.log(math.exp(1) + 2) - 1)) / 2
# p = (e^2, 1, 1) / (e^2 + 2) and p' its first two entries swapped: KL = (p_0 - p_1) * 2; the second image adds 0
KL = (math.exp(2) - 1) / (math.exp(2) + 2) * 2 / 2


def random_outputs(classes: int = 4, n: int = 6) -> tuple[Outputs, Tensor]:
    """Random logits and features of x and x', asking for gradients."""
    z, z_adv = (torch.randn(n, classes, requires_grad=True) for _ in range(2))
    h, h_adv = (torch.randn(n, 5, requires_grad=True) for _ in range(2))
    return Outputs(z, z_adv, h, h_adv), torch.arange(n) % classes


def test_trades_by_hand() -> None:
    terms = Trades(inv_lambda=6)(Outputs(Z, Z_ADV), Y)
    assert list(terms) == ["clean", "zeroth"]
    assert float(terms["clean"]) == pytest.approx(CE_CLEAN, rel=1e-6)
    assert float(terms["zeroth"]) == pytest.approx(6 * KL, rel=1e-6)


def test_at_by_hand_never_looks_at_x() -> None:
    terms = AT()(Outputs(None, Z_ADV), Y)
    assert list(terms) == ["zeroth"]
    assert float(terms["zeroth"]) == pytest.approx(CE_ADV, rel=1e-6)
    assert not AT().needs.clean


def test_the_head_terms_by_hand() -> None:
    """One image, three classes, one feature: every step of Appendix D written out."""
    p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
    outputs = Outputs(
        torch.tensor([p]).log(), torch.tensor([q]).log(), features=torch.tensor([[2.0]]), features_adv=torch.ones(1, 1)
    )
    r, r_adv = [2 * (p[0] - 1), 2 * p[1], 2 * p[2]], [q[0] - 1, q[1], q[2]]

    def row(gap: list[float]) -> list[float]:
        shifted = [g - min(gap) for g in gap]
        return [2 / 3, shifted[1] / (shifted[1] + shifted[2]) / 3, shifted[2] / (shifted[1] + shifted[2]) / 3]

    def divergence(t: list[float], probabilities: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(t, probabilities, strict=True) if a)

    wanted = []
    for value in (abs, lambda v: v * v):
        gap = [value(a) - value(b) for a, b in zip(r, r_adv, strict=True)]
        wanted.append((divergence(row(gap), q) + divergence(row([-g for g in gap]), p)) / 2)
    terms = Trades(taylor=Taylor(order=2, eta=0.2))(outputs, torch.tensor([0]))
    assert list(terms) == ["clean", "zeroth", "first", "second"]
    assert float(terms["first"]) == pytest.approx(0.2 * wanted[0], rel=1e-5)
    assert float(terms["second"]) == pytest.approx(0.1 * wanted[1], rel=1e-5)


def test_the_loss_is_the_sum_of_its_terms() -> None:
    outputs, y = random_outputs()
    terms = {name: value.detach() for name, value in Trades(taylor=Taylor(order=2, eta=0.3))(outputs, y).items()}
    assert float(total(terms)) == pytest.approx(sum(map(float, terms.values())), rel=1e-6)


def mean_kl(*pairs: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over (target rows, logits) of KL(target || softmax(logits)), by torch's own function."""
    each = [F.kl_div(logits.log_softmax(1), target, reduction="batchmean") for target, logits in pairs]
    return torch.stack(each).mean()


@pytest.mark.parametrize("base", [AT, Trades])
def test_released_differs_from_head_exactly_in_the_second_order_target(base: type) -> None:
    outputs, y = random_outputs()
    head, released = (base(taylor=Taylor(order=2, eta=0.3, mode=mode))(outputs, y) for mode in ("head", "released"))
    assert list(head) == list(released)
    for name in head:
        assert torch.equal(head[name], released[name]) == (name != "second")
    r, r_adv = (
        head_gradient(outputs.features, outputs.logits, y),
        head_gradient(outputs.features_adv, outputs.logits_adv, y),
    )
    slip = rows_of_targets(r_adv.square() - r.square())[y]
    assert torch.allclose(released["second"], 0.15 * mean_kl((slip, outputs.logits_adv), (slip, outputs.logits)))


def test_one_minus_eta_weighs_the_clean_term_and_no_other() -> None:
    outputs, y = random_outputs()
    paper, release = (
        Trades(taylor=Taylor(order=2, eta=0.2), clean_weight=w)(outputs, y) for w in ("one", "one-minus-eta")
    )
    assert torch.allclose(release["clean"], 0.8 * paper["clean"])
    assert all(torch.equal(paper[name], release[name]) for name in ("zeroth", "first", "second"))


@pytest.mark.parametrize("factor", [0.5, 0.4])
def test_eta_and_second_factor_weigh_the_taylor_terms(factor: float) -> None:
    outputs, y = random_outputs()
    unit = Trades(taylor=Taylor(order=2, eta=1.0, second_factor=1.0))(outputs, y)
    terms = Trades(taylor=Taylor(order=2, eta=0.2, second_factor=factor))(outputs, y)
    assert torch.allclose(terms["first"], 0.2 * unit["first"])
    assert torch.allclose(terms["second"], 0.2 * factor * unit["second"])
    none = Trades(taylor=Taylor(order=2, eta=0))(outputs, y)
    assert float(none["first"].detach()) == float(none["second"].detach()) == 0


@pytest.mark.parametrize(("base", "mode"), list(product([AT, Trades], ["head", "released"])))
def test_targets_carry_no_gradient(base: type, mode: str) -> None:
    outputs, y = random_outputs()
    terms = base(taylor=Taylor(order=2, eta=0.3, mode=mode))(outputs, y)
    taylor = terms["first"] + terms["second"]
    inputs = [outputs.features, outputs.features_adv, outputs.logits, outputs.logits_adv]
    by_h, by_h_adv, by_z, _ = torch.autograd.grad(taylor, inputs, allow_unused=True)
    assert by_h is None
    assert by_h_adv is None
    # d KL(t || softmax(z)) / dz = softmax(z) - t: with t held, each row sums to 0 and is weighed by both terms
    p, n = outputs.logits.detach().softmax(1), len(y)
    r, r_adv = (head_gradient(h, z, y) for h, z in zip(inputs[:2], inputs[2:], strict=True))
    rows = [soft_targets(-(value(r) - value(r_adv))) for value in (torch.abs, torch.square)]
    wanted = (0.3 * (p - rows[0][y]) + 0.15 * (p - rows[1][y])) / (2 * n)
    assert torch.allclose(by_z, wanted, atol=1e-6)


def test_head_gradients_are_averaged_over_ranks_before_abs_and_square() -> None:
    outputs, y = random_outputs()
    seen = []

    def reduce(rows: Tensor) -> Tensor:
        seen.append(rows)
        return rows - 1.0  # what other ranks might bring

    terms = Trades(taylor=Taylor(order=2, eta=0.3))(outputs, y, reduce=reduce)
    (rows,) = seen
    assert rows.shape == (2, 4)
    r, r_adv = rows - 1.0
    for name, weight, value in (("first", 0.3, torch.abs), ("second", 0.15, torch.square)):
        gap = value(r) - value(r_adv)
        plus, minus = rows_of_targets(gap)[y], rows_of_targets(-gap)[y]
        assert torch.allclose(terms[name], weight * mean_kl((plus, outputs.logits_adv), (minus, outputs.logits)))


def stepped(objective: AT | Trades, *, sigma: float = 0.1, draws: int = 1) -> tuple[dict[str, Tensor], PairedForward]:
    model = create_model("cnn", classes=3, channels=1, width=2).train()
    head = find_head(model) if objective.needs.features else None
    forward = PairedForward(model, objective.needs, head)
    x, x_adv, y = torch.rand(5, 1, 8, 8), torch.rand(5, 1, 8, 8), torch.arange(5) % 3
    u = tuple(Noise(sigma=sigma)(model) for _ in range(draws))
    return objective(forward(x, x_adv, u), y), forward


@pytest.mark.parametrize(("base", "mode", "order"), list(product([AT, Trades], ["head", "released", "exact"], [1, 2])))
def test_each_mode_names_the_terms_of_its_order(base: type, mode: str, order: int) -> None:
    terms, forward = stepped(base(taylor=Taylor(mode=mode, order=order)))
    first = ["clean"] if base is Trades else []
    assert list(terms) == [*first, "zeroth", "first", "second"][: len(first) + 1 + order]
    total(terms).backward()
    gradients = [p.grad for p in forward.model.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)


@pytest.mark.parametrize(("base", "order"), list(product([AT, Trades], [1, 2])))
def test_sampled_needs_no_expansion(base: type, order: int) -> None:
    terms, _ = stepped(base(taylor=Taylor(mode="sampled", order=order)), draws=2)
    assert list(terms) == (["clean", "zeroth"] if base is Trades else ["zeroth"])


def test_exact_compares_the_softmax_of_the_directional_derivatives() -> None:
    pairs = tuple((torch.randn(4, 3), torch.randn(4, 3)) for _ in range(2))
    terms = Trades(taylor=Taylor(mode="exact", order=2, eta=0.2))(
        Outputs(Z[:1].expand(4, 3), Z[:1].expand(4, 3), derivatives=pairs), torch.zeros(4, dtype=torch.long)
    )
    assert torch.allclose(terms["first"], 0.2 * kl(*pairs[0]).mean())
    assert torch.allclose(terms["second"], 0.1 * kl(*pairs[1]).mean())


def test_sampled_averages_the_zeroth_term_over_u() -> None:
    model = create_model("cnn", classes=3, channels=1, width=2).train()
    x, x_adv, y = torch.rand(5, 1, 8, 8), torch.rand(5, 1, 8, 8), torch.arange(5) % 3
    draws = tuple(Noise(sigma=0.1)(model) for _ in range(3))
    objective = Trades(taylor=Taylor(mode="sampled", order=1))
    terms = objective(PairedForward(model, objective.needs)(x, x_adv, draws), y)
    values = []
    for u in draws:
        with perturbed(model, u), torch.no_grad():
            values.append(6 * kl(model(x), model(x_adv)).mean())
    assert torch.allclose(terms["zeroth"], torch.stack(values).mean(), rtol=1e-4)


def test_the_head_input_is_read_from_a_users_sequential() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x, x_adv = torch.rand(5, 1, 2, 2), torch.rand(5, 1, 2, 2)
    forward = PairedForward(model, ForwardSpec(features=True), find_head(model))
    outputs = forward(x, x_adv)
    assert torch.equal(outputs.features, model[:3](x))
    assert torch.equal(outputs.features_adv, model[:3](x_adv))
    assert torch.equal(outputs.logits, model(x))
    assert torch.equal(outputs.logits_adv, model(x_adv))
    assert not model[3]._forward_pre_hooks  # nothing stays behind
    assert [name for name, _ in forward.named_parameters()] == [f"model.{n}" for n, _ in model.named_parameters()]


def test_no_forward_pass_is_made_that_nobody_asked_for() -> None:
    model, calls = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), []
    model.register_forward_hook(lambda *_: calls.append(1))
    outputs = PairedForward(model, AT().needs)(torch.rand(2, 1, 2, 2), torch.rand(2, 1, 2, 2))
    assert outputs.logits is None
    assert outputs.features is None
    assert len(calls) == 1
    calls.clear()
    PairedForward(model, Trades(taylor=Taylor(order=2)).needs, model[1])(torch.rand(2, 1, 2, 2), torch.rand(2, 1, 2, 2))
    assert len(calls) == 2  # the Taylor terms of mode head need no pass of their own


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), 1),  # not the last layer
        (nn.Sequential(nn.Linear(2, 2), nn.Flatten()), 0),  # not on [n, d]
    ],
)
def test_a_head_whose_output_is_not_the_logits_is_refused(model: nn.Sequential, head: int) -> None:
    forward = PairedForward(model, ForwardSpec(features=True), model[head])
    with pytest.raises(
        RattleError, match=r"need a linear head whose output is the logits.*set objective.taylor.order 0"
    ):
        forward(torch.rand(2, 1, 2, 2), torch.rand(2, 1, 2, 2))


def test_taylor_terms_without_a_linear_layer_are_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten())
    with pytest.raises(RattleError, match=r"need the linear head .*no nn.Linear; choose a method without"):
        find_head(model)


def test_taylor_terms_without_features_are_refused() -> None:
    with pytest.raises(RattleError, match=r"the Taylor terms head and released need logits and features of x and x'"):
        AT(taylor=Taylor(order=1))(Outputs(None, Z_ADV), Y)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"order": 3}, "objective.taylor.order must be 0, 1 or 2, got 3"),
        ({"order": -1}, "objective.taylor.order must be 0, 1 or 2, got -1"),
        ({"order": 1, "eta": -0.1}, "objective.taylor.eta must be >= 0, got -0.1"),
        ({"order": 1, "eta": math.nan}, "objective.taylor.eta must be >= 0, got nan"),
        (
            {"mode": "literal"},
            "objective.taylor.mode must be one of head, released, smoothing, exact, trace, head-noise, sampled, "
            "got 'literal'",
        ),
        ({"second_factor": -1.0}, "objective.taylor.second_factor must be >= 0, got -1.0"),
        ({"eta": 0.3}, "objective.taylor.eta 0.3 does nothing at order 0: set objective.taylor.order to 1 or 2"),
        (
            {"mode": "exact"},
            "objective.taylor.mode exact does nothing at order 0: set objective.taylor.order to 1 or 2",
        ),
        (
            {"mode": "trace", "order": 1},
            "objective.taylor.mode trace is a second-order term: set objective.taylor.order 2",
        ),
        (
            {"temperature": 0.1, "order": 1},
            "objective.taylor.temperature 0.1 does nothing in mode head of order 1: it is for exact",
        ),
        (
            {"antithetic": True, "order": 2, "mode": "trace"},
            "objective.taylor.antithetic True does nothing in mode trace of order 2: it is for exact and sampled",
        ),
        (
            {"second_value": "derivative"},
            "objective.taylor.second_value derivative does nothing in mode head of order 0: it is for head",
        ),
        (
            {"temperature": 0.0, "order": 1, "mode": "exact"},
            "objective.taylor.temperature must be > 0, got 0.0",
        ),
        (
            {"share": 0.0, "order": 1, "mode": "sampled"},
            "objective.taylor.share must be above 0 and at most 1, got 0.0",
        ),
    ],
)
def test_taylor_settings_that_mean_nothing_are_refused(setting: dict, sentence: str) -> None:
    with pytest.raises(RattleError, match=f"^{sentence}$"):
        Taylor(**setting)


def test_eta_is_the_papers_best_for_the_order_when_not_given() -> None:
    assert [Taylor(order=order).weight for order in (0, 1, 2)] == [0, 0.3, 0.2]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"inv_lambda": -6.0}, "objective.inv_lambda must be >= 0, got -6.0"),
        ({"clean_weight": "none"}, "objective.clean_weight must be one of one, one-minus-eta, got 'none'"),
        ({"clean_weight": "one-minus-eta"}, "objective.clean_weight one-minus-eta does nothing without Taylor terms"),
    ],
)
def test_trades_settings_that_mean_nothing_are_refused(setting: dict, sentence: str) -> None:
    with pytest.raises(RattleError, match=f"^{sentence}$"):
        Trades(**setting)


def test_two_classes_turn_the_taylor_terms_into_cross_entropies() -> None:
    outputs, y = random_outputs(classes=2)
    terms = Trades(taylor=Taylor(order=2, eta=1.0, second_factor=1.0))(outputs, y)
    wanted = 0.5 * (F.cross_entropy(outputs.logits, y) + F.cross_entropy(outputs.logits_adv, y))
    assert torch.allclose(terms["first"], wanted)
    assert torch.allclose(terms["second"], wanted)
