"""Jets carry the derivatives that nested forward-mode differentiation finds, and go past nothing in silence."""

import copy

import pytest
import torch
from torch import Tensor, nn

from rattle.models.registry import create_model
from rattle.taylor import directional
from rattle.weights import Noise, frozen_bn_stats
from reproduction.readings.curvature import along
from reproduction.readings.jets import NoRule, derivatives

NETWORKS = {"cnn": 4, "cnn-strided": 4, "preact18": 2, "resnet18": 2, "wrn28-10": 1, "vgg16": 2, "mobilenetv2": 2}


def network(name: str) -> tuple[nn.Module, Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = create_model(name, classes=5, channels=3, width=NETWORKS[name]).double()
    with torch.no_grad():
        model.train()(torch.rand(4, 3, 32, 32, dtype=torch.double))  # statistics that differ from the batch's
    u = Noise(sigma=0.1, scale="filter")(model, generator=torch.Generator().manual_seed(1))
    return model, torch.rand(4, 3, 32, 32, dtype=torch.double), u


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).detach().norm() / wanted.detach().norm())


def gradient(model: nn.Module, value: Tensor) -> Tensor:
    settings = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, [*model.parameters()], **settings)])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_jets_equal_nested_differentiation_and_so_do_their_gradients(name: str, training: bool) -> None:
    model, x, u = network(name)
    model.train(training)
    before = copy.deepcopy(model.state_dict())
    with frozen_bn_stats(model):
        found, wanted = derivatives(model, x, u, 2), directional(model, x, u, 2)
        (first,) = derivatives(model, x, u, 1)
    assert torch.equal(first, found[0])
    probe = torch.randn(4, 5, dtype=torch.double)
    for a, b in zip(found, wanted, strict=True):
        assert far(a, b) < 1e-11
        gradients = [gradient(model, (each * probe).sum()) for each in (a, b)]
        assert far(*gradients) < 1e-10
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


class Layers(nn.Module):
    """Convolution, something, and a head, beside a shortcut around the something."""

    def __init__(self, something: nn.Module) -> None:
        super().__init__()
        self.conv, self.something, self.head = nn.Conv2d(1, 4, 3), something, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.head((self.something(h) * h - 0.5 * h).mean((2, 3)))


class Tripled(torch.autograd.Function):
    """An operation of a user's, which no mode of torch sees."""

    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:
        return 3 * z

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 3 * gradient


class Outside(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return Tripled.apply(z)  # type: ignore[return-value]


class Alias(nn.Module):
    """Changes its input in place after another name was given to it."""

    def forward(self, z: Tensor) -> Tensor:
        flat = z.flatten(1)
        nn.functional.relu(z, inplace=True)
        return flat.view_as(z)


class Weighted(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return torch.add(z, z, alpha=0.5)


@pytest.mark.parametrize("something", [nn.Identity(), nn.ReLU(), nn.ReLU(inplace=True), nn.MaxPool2d(3, 1, 1)])
def test_sums_products_and_shortcuts_carry_both_derivatives(something: nn.Module) -> None:
    torch.manual_seed(0)
    model, x = Layers(something).double(), torch.rand(4, 1, 8, 8, dtype=torch.double)
    u = {name: torch.randn_like(p) for name, p in model.named_parameters()}  # biases too
    for a, b in zip(derivatives(model, x, u, 2), directional(model, x, u, 2), strict=True):
        assert far(a, b) < 1e-12


@pytest.mark.parametrize(
    "something", [nn.Tanh(), nn.GroupNorm(2, 4), nn.Dropout2d(0.0), Outside(), Alias(), Weighted()]
)
def test_what_has_no_rule_is_noticed(something: nn.Module) -> None:
    model = Layers(something)
    with pytest.raises(NoRule):
        derivatives(model, torch.rand(4, 1, 8, 8), Noise()(model), 2)


def test_derivatives_that_do_not_depend_on_the_weights_have_a_gradient_of_zero() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.rand(2, 1, 2, 2)
    u = Noise(sigma=0.1)(model)
    first, second = derivatives(model, x, u, 2)
    assert torch.allclose(first, x.flatten(1) @ u["1.weight"].T)
    assert not second.any()
    assert not any(gradient(model, part.sum()).any() for part in (first, second))


def test_without_a_rule_or_gradients_the_nested_way_is_taken() -> None:
    model, x = Layers(nn.Tanh()).double(), torch.rand(4, 1, 8, 8, dtype=torch.double)
    u = Noise(sigma=0.1)(model)
    wanted = directional(model, x, u, 2)
    assert all(torch.equal(a, b) for a, b in zip(along(model, x, u), wanted, strict=True))
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(along(model, x, u), wanted, strict=True))
