"""Landscapes and flatness on quadratic models whose surface, Hessian and eigenvalues are known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian

from rattle import losses
from rattle.analysis.flatness import (
    flatness,
    input_curvature,
    local_lipschitz,
    noise_rise,
    weight_curvature,
)
from rattle.analysis.landscape import (
    filter_normalised,
    input_plane,
    input_surface,
    weight_surface,
)
from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.threat import Threat
from rattle.weights import Noise

SPECTRUM = [5.0, 2.0, 0.5, -1.0]  # eigenvalues of the quadratic's Hessian


@pytest.fixture
def outputs_are_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one output of a model is the loss itself."""
    monkeypatch.setattr(losses, "ce", lambda logits, y: logits[:, 0])


def symmetric(spectrum: list[float]) -> Tensor:
    basis = torch.linalg.qr(torch.randn(len(spectrum), len(spectrum), dtype=torch.float64)).Q
    return basis @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ basis.T


class Quadratic(nn.Module):
    """1/2 v^T A v, v being an image of four pixels or, with `of_weights`, the 2 x 2 weight whatever the image."""

    def __init__(self, spectrum: list[float], *, of_weights: bool = False) -> None:
        super().__init__()
        self.register_buffer("A", symmetric(spectrum))
        self.of_weights = of_weights
        self.w = nn.Parameter(torch.randn(2, 2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        v = self.w.expand(len(x), 2, 2).flatten(1) if self.of_weights else x.flatten(1)
        return 0.5 * ((v @ self.get_buffer("A")) * v).sum(1, keepdim=True)


def four_pixels(n: int = 3) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 1, 2, 2, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)


def state(model: nn.Module) -> list[object]:
    """Everything a borrowed model must give back: weights, statistics, mode, gradients and who asks for them."""
    tensors = [tensor.tolist() for tensor in model.state_dict().values()]
    return [tensors, [m.training for m in model.modules()], [(p.requires_grad, p.grad) for p in model.parameters()]]


@pytest.mark.usefixtures("outputs_are_losses")
def test_the_input_surface_of_a_quadratic_is_the_quadratic_on_the_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = Quadratic(SPECTRUM), four_pixels()
    matrix = model.get_buffer("A").numpy()
    plane = input_plane(model, x, y, radius=0.2, points=5)
    pixels, g, r = (part.reshape(3, 1, 1, 4) for part in (x.numpy(), plane.gradient, plane.rademacher))
    assert np.array_equal(g, np.sign(pixels @ matrix))
    assert set(np.unique(r)) == {-1.0, 1.0}
    assert plane.a[2] == plane.b[2] == 0
    v = pixels + plane.a[:, None, None] * g + plane.b[:, None] * r
    for size in (7, 1000):
        monkeypatch.setattr("rattle.analysis.landscape.FORWARD_BATCH", size)
        surface = input_surface(model, x, y, plane)
        assert np.allclose(surface.loss, 0.5 * (v @ matrix * v).sum(-1), rtol=1e-9)
    with pytest.raises(RattleError, match="the plane is for images"):
        input_surface(model, x[:1], y[:1], plane)


def test_the_same_seed_gives_the_same_plane_and_the_middle_is_the_clean_loss() -> None:
    model = create_model("cnn", classes=10, channels=1, width=4)
    x, y = torch.rand(2, 1, 8, 8), torch.tensor([3, 4])
    first, second = (input_plane(model, x, y, points=3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert np.array_equal(first.rademacher, second.rademacher)
    surface = input_surface(model, x, y, first)
    logits = model.eval()(x)
    assert surface.loss[:, 1, 1] == pytest.approx(losses.ce(logits, y).detach().numpy(), rel=1e-5)
    assert np.array_equal(surface.correct[:, 1, 1], (logits.argmax(1) == y).numpy())


@pytest.mark.usefixtures("outputs_are_losses")
def test_the_weight_surface_of_a_quadratic_is_the_quadratic() -> None:
    model, (x, y) = Quadratic(SPECTRUM, of_weights=True), four_pixels()
    d1, d2 = torch.randn(2, 2, 2).double()
    surface = weight_surface(model, x, y, directions=({"w": d1}, {"w": d2}), points=3)
    for i, j in np.ndindex(3, 3):
        v = (model.w.detach() + surface.a[i] * d1 + surface.b[j] * d2).flatten()
        assert surface.clean[i, j] == pytest.approx(float(0.5 * v @ model.get_buffer("A") @ v), rel=1e-9)
    line = weight_surface(model, x, y, directions=({"w": d1},), points=3)
    assert (line.dimensions, surface.dimensions, line.attacked) == (1, 2, False)
    assert np.allclose(line.clean[:, 0], surface.clean[:, 1])
    with pytest.raises(RattleError, match="one or two directions"):
        weight_surface(model, x, y, directions=())


def test_every_filter_of_a_direction_is_as_long_as_the_models() -> None:
    model = create_model("cnn", classes=10, channels=1, width=4)
    direction = filter_normalised(model, generator=torch.Generator().manual_seed(0))
    parameters = dict(model.named_parameters())
    assert set(direction) == {name for name, p in parameters.items() if p.ndim > 1}
    for name, d in direction.items():
        assert torch.allclose(d.flatten(1).norm(dim=1), parameters[name].flatten(1).norm(dim=1), rtol=1e-5)
    with pytest.raises(RattleError, match="no weight matrix"):
        filter_normalised(nn.BatchNorm1d(3))


def test_adversarial_loss_lies_above_clean_loss_and_is_the_same_in_other_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = create_model("cnn", classes=10, channels=1, width=4)
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6)
    attack = PGD(threat=Threat(epsilon=0.1), steps=3, step_size=0.05)
    directions = [filter_normalised(model)]
    first = weight_surface(model, x, y, directions=directions, points=3, attack=attack)
    monkeypatch.setattr("rattle.analysis.landscape.FORWARD_BATCH", 4)
    second = weight_surface(model, x, y, directions=directions, points=3, attack=attack)
    assert (first.adversarial > first.clean).all()
    assert np.allclose(first.adversarial, second.adversarial, rtol=1e-5)


@pytest.mark.usefixtures("outputs_are_losses")
@pytest.mark.parametrize(
    ("spectrum", "largest"), [(SPECTRUM, 5.0), ([1.0, 0.5, -2.0, -8.0], 1.0), ([-1.0, -2.0, -3.0, -4.0], -1.0)]
)
def test_the_largest_eigenvalue_is_found_also_when_a_negative_one_dominates(
    spectrum: list[float], largest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rattle.analysis.flatness.HESSIAN_BATCH", 2)
    monkeypatch.setattr("rattle.analysis.flatness.RESIDUAL_TOLERANCE", 1e-6)
    x, y = four_pixels()
    inputs = input_curvature(Quadratic(spectrum), x, y, iterations=300)
    weights = weight_curvature(Quadratic(spectrum, of_weights=True), x, y, iterations=300)
    assert inputs == pytest.approx([largest] * 3, rel=1e-6)
    assert weights == pytest.approx(largest, rel=1e-6)


def test_curvature_of_a_small_network_is_the_top_of_its_whole_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rattle.analysis.flatness.HESSIAN_BATCH", 1)
    monkeypatch.setattr("rattle.analysis.flatness.RESIDUAL_TOLERANCE", 1e-5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.rand(2, 1, 2, 2, dtype=torch.float64), torch.tensor([0, 2])
    names, parameters = zip(*model.named_parameters(), strict=True)

    def mean_loss(*parts: Tensor) -> Tensor:
        return losses.ce(torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (x,)), y).mean()

    blocks = hessian(mean_loss, tuple(p.detach() for p in parameters))
    rows = [torch.cat([h.reshape(p.numel(), -1) for h in row], 1) for p, row in zip(parameters, blocks, strict=True)]
    images = [hessian(lambda v, i=i: losses.ce(model(v[None]), y[i : i + 1])[0], x[i]).view(4, 4) for i in range(2)]
    top, *tops = [float(torch.linalg.eigvalsh(h)[-1]) for h in (torch.cat(rows), *images)]
    assert weight_curvature(model, x, y, iterations=500) == pytest.approx(top, rel=1e-5)
    assert input_curvature(model, x, y, iterations=500) == pytest.approx(tops, rel=1e-5)


@pytest.mark.usefixtures("outputs_are_losses")
def test_the_lipschitz_estimate_is_the_largest_dual_norm_of_the_gradient_in_the_ball() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).double()
    x, y = four_pixels()
    weight = model[1].weight.detach()
    for threat, dual in ((Threat(norm="linf", epsilon=0.1), weight.abs().sum()), (Threat(norm="l2"), weight.norm())):
        assert local_lipschitz(model, x, y, threat=threat) == pytest.approx([float(dual)] * 3)
    middle = torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64)  # of x^2 / 2 the gradient is x: largest at a corner
    found = local_lipschitz(Quadratic([1.0] * 4), middle, y[:1], threat=Threat(epsilon=0.1))
    assert found == pytest.approx([4 * 0.6])


@pytest.mark.usefixtures("outputs_are_losses")
def test_the_mean_rise_under_noise_is_half_sigma_squared_times_the_trace() -> None:
    model, (x, y) = Quadratic(SPECTRUM, of_weights=True), four_pixels(1)
    rises = noise_rise(model, x, y, noise=Noise(sigma=0.5), draws=800, generator=torch.Generator().manual_seed(0))
    assert abs(rises.mean() - 0.5 * 0.25 * sum(SPECTRUM)) < 4 * rises.std(ddof=1) / math.sqrt(800)


def test_models_come_back_bit_for_bit_also_after_an_error_and_flatness_is_the_mean_of_its_parts() -> None:
    model = create_model("cnn", classes=10, channels=1, width=4).train()
    model.body[1].eval()  # type: ignore[index]
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    before, directions = state(model), (filter_normalised(model), filter_normalised(model))

    input_surface(model, x, y, input_plane(model, x, y, points=3))
    weight_surface(model, x, y, directions=directions, points=3, attack=PGD(steps=2))
    with pytest.raises(RattleError):
        weight_surface(model, x, y + 10, directions=directions)  # labels without a logit, found at w + u
    found = flatness(model, x, y, threat=Threat(), iterations=3, draws=5, seed=1)
    rises = noise_rise(model, x, y, draws=5, generator=torch.Generator().manual_seed(1))
    assert found["noise_rise"] == pytest.approx(rises.mean())
    assert found["noise_rise_error"] == pytest.approx(rises.std(ddof=1) / math.sqrt(5))
    assert state(model) == before
