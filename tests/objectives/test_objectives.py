"""The head's Taylor terms by hand, the settings of Taylor terms, and the forward passes they are made from."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.errors import RattleError
from rattle.forward import ForwardSpec, Outputs, PairedForward
from rattle.objectives import AT, Taylor, Trades
from rattle.objectives.loss import compute_loss


def random_outputs(classes: int = 4, n: int = 6) -> tuple[Outputs, Tensor]:
    """Random logits and features of x and x', asking for gradients."""
    z, z_adv = (torch.randn(n, classes, requires_grad=True) for _ in range(2))
    h, h_adv = (torch.randn(n, 5, requires_grad=True) for _ in range(2))
    return Outputs(z, z_adv, h, h_adv), torch.arange(n) % classes


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


@pytest.mark.parametrize(("objective", "passes"), [(AT(), 1), (Trades(taylor=Taylor(order=2)), 2)])
def test_no_forward_pass_is_made_that_nobody_asked_for(objective: AT | Trades, passes: int) -> None:
    model, calls = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), []
    model.register_forward_hook(lambda *_: calls.append(1))
    PairedForward(model, objective.needs, model[1])(*torch.rand(2, 2, 1, 2, 2))
    assert len(calls) == passes


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), 1),  # not the last layer
        (nn.Sequential(nn.Linear(2, 2), nn.Flatten()), 0),  # not on [n, d]
    ],
)
def test_a_head_whose_output_is_not_the_logits_is_refused(model: nn.Sequential, head: int) -> None:
    forward = PairedForward(model, ForwardSpec(features=True), model[head])
    with pytest.raises(RattleError, match=r"objective\.taylor\.order 0"):
        forward(torch.rand(2, 1, 2, 2), torch.rand(2, 1, 2, 2))


def test_taylor_terms_without_features_are_refused() -> None:
    with pytest.raises(RattleError, match="features"):
        AT(taylor=Taylor(order=1))(Outputs(None, torch.randn(2, 3)), torch.tensor([0, 1]))


def test_two_classes_turn_the_taylor_terms_into_cross_entropies() -> None:
    outputs, y = random_outputs(classes=2)
    terms = Trades(taylor=Taylor(order=2, eta=1.0))(outputs, y)
    wanted = 0.5 * (F.cross_entropy(outputs.logits, y) + F.cross_entropy(outputs.logits_adv, y))
    assert torch.allclose(terms["first"], wanted)
    assert torch.allclose(terms["second"], 0.5 * wanted)


def test_a_model_that_returns_whole_numbers_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model.register_forward_hook(lambda *given: given[-1].round().long())
    x, y = torch.rand(5, 1, 2, 2), torch.zeros(5, dtype=torch.long)
    with pytest.raises(RattleError, match=r"int64, which has no gradient"):
        compute_loss(Trades(), model, x, x, y)
