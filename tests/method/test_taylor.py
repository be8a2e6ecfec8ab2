"""The closed forms against autograd and by hand; the exact derivatives against finite differences."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.taylor import directional, head_gradient, soft_targets
from rattle.weights import Noise


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 7), st.integers(2, 6), st.integers(0, 2**31))
def test_head_gradient_is_the_row_sum_of_autograds_gradient(n: int, d: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    h, y = torch.randn(n, d, generator=generator), torch.randint(classes, (n,), generator=generator)
    weight = torch.randn(classes, d, generator=generator, requires_grad=True)
    bias = torch.randn(classes, generator=generator)
    logits = F.linear(h, weight, bias)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, y), weight)
    closed = head_gradient(h, logits, y)
    assert torch.allclose(closed, gradient.sum(1), rtol=1e-5, atol=1e-6)
    assert not closed.requires_grad


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=12))
def test_soft_targets_are_probabilities_with_two_over_c_on_the_class_itself(gap: list[float]) -> None:
    rows = soft_targets(torch.tensor(gap), torch.arange(len(gap)))
    assert rows.shape == (len(gap), len(gap))
    assert torch.allclose(rows.sum(1), torch.ones(len(gap)), atol=1e-5)
    assert (rows >= 0).all()
    assert torch.allclose(rows.diag(), torch.full((len(gap),), 2 / len(gap)), atol=1e-6)


EVEN = [[1 / 2, 0, 1 / 2, 0], [0, 1 / 2, 1 / 2, 0], [1 / 6, 1 / 6, 1 / 2, 1 / 6], [0, 0, 1 / 2, 1 / 2]]


@pytest.mark.parametrize(
    ("gap", "by_hand"),
    [
        # shifted: 0, 0.2, 0.5; c = 1/3
        ([0.1, 0.3, 0.6], [[2 / 3, 2 / 21, 5 / 21], [0, 2 / 3, 1 / 3], [0, 1 / 3, 2 / 3]]),
        ([0.0, 0.0, 1.0, 0.0], EVEN),  # the row of the only class with a gap is even
        ([0.0, 0.0, 1.0, 1e-40], EVEN),
        ([0.0, 0.0], [[1, 0], [0, 1]]),
        ([1.0, -3.0], [[1, 0], [0, 1]]),
    ],
)
def test_soft_targets_by_hand(gap: list[float], by_hand: list[list[float]]) -> None:
    assert torch.allclose(
        soft_targets(torch.tensor(gap), torch.arange(len(gap))), torch.tensor(by_hand, dtype=torch.float32), atol=1e-6
    )


def test_soft_targets_of_a_batch_are_the_rows_of_its_classes() -> None:
    gap, y = torch.randn(1000), torch.tensor([7, 999, 7, 0])
    rows = soft_targets(gap, torch.arange(1000))
    assert soft_targets(gap, y).shape == (4, 1000)
    assert torch.equal(soft_targets(gap, y), rows[y])
    assert torch.equal(soft_targets(gap.expand(1000, 1000), y), rows[y])


def logits_at(model: nn.Module, x: Tensor, u: dict[str, Tensor], t: float) -> Tensor:
    moved = {name: model.get_parameter(name) + t * delta for name, delta in u.items()}
    return functional_call(model, moved, (x,)).detach()


@pytest.mark.parametrize("training", [True, False])
def test_directional_normalises_as_the_mode_says_and_holds_the_statistics(training: bool) -> None:
    model = create_model("cnn", classes=3, channels=1, width=2).double()
    x = torch.rand(5, 1, 8, 8, dtype=torch.double)
    model.train()(x)  # statistics that differ from the batch's
    model.train(training)
    u = Noise(sigma=0.1)(model)
    before = copy.deepcopy(model.state_dict())
    (first,) = directional(model, x, u, 1)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    h, twin = 1e-6, copy.deepcopy(model)
    wanted = (logits_at(twin, x, u, h) - logits_at(twin, x, u, -h)) / (2 * h)
    assert torch.allclose(first, wanted, rtol=1e-4, atol=1e-6)


LAYERS = {
    "none": [nn.Tanh(), nn.Flatten()],
    "batch, images": [nn.BatchNorm2d(4), nn.Flatten()],
    "batch, rows": [nn.Flatten(), nn.BatchNorm1d(36)],
    "batch, without weights": [nn.BatchNorm2d(4, affine=False), nn.Flatten()],
    "layer": [nn.LayerNorm([4, 3, 3]), nn.Flatten()],
    "layer, without weights": [nn.Flatten(), nn.LayerNorm(36, elementwise_affine=False)],
    "group": [nn.GroupNorm(2, 4), nn.Flatten()],
}


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_through_normalisation_by_the_batch_equal_finite_differences(name: str) -> None:
    """torch's own rules hold the mean and deviation for constants, see `ElementaryNorms`."""
    model = nn.Sequential(nn.Conv2d(1, 4, 2), *copy.deepcopy(LAYERS[name]), nn.Linear(36, 3)).double().train()
    for p in model.parameters():
        nn.init.normal_(p)
    x = torch.rand(5, 1, 4, 4, dtype=torch.double)
    u = Noise(sigma=0.1)(model)
    first, second = directional(model, x, u, 2)
    h, twin = 1e-3, copy.deepcopy(model)
    above, at, below = (logits_at(twin, x, u, t) for t in (h, 0, -h))
    assert torch.allclose(first, (above - below) / (2 * h), rtol=1e-3, atol=1e-4)
    assert torch.allclose(second, (above - 2 * at + below) / h**2, rtol=1e-3, atol=1e-3)
    probe = torch.randn_like(first)
    (gradient,) = torch.autograd.grad((first * probe).sum(), model[0].weight)
    values = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            moved[0].weight.add_(sign * 1e-5 * u["0.weight"])
        values.append(float((directional(moved, x, u, 1)[0] * probe).sum().detach()))
    assert float((gradient * u["0.weight"]).sum()) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


class Untraceable(nn.Module):
    """Leaves torch in the middle of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x.flatten(1))
        return z * torch.from_numpy(z.detach().numpy()).mean()


class Opaque(torch.autograd.Function):
    """A user's operation without a forward-mode rule."""

    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


class WithOpaque(Untraceable):
    def forward(self, x: Tensor) -> Tensor:
        return Opaque.apply(self.inner(x.flatten(1)))


@pytest.mark.parametrize("kind", [Untraceable, WithOpaque])
@pytest.mark.parametrize("order", [1, 2])
def test_a_model_torch_func_cannot_trace_gets_one_sentence(kind: type[nn.Module], order: int) -> None:
    model = kind()
    with pytest.raises(RattleError) as caught:
        directional(model, torch.rand(2, 1, 2, 2), Noise()(model), order)
    assert "objective.taylor.mode" in str(caught.value)
    assert "\n" not in str(caught.value)
