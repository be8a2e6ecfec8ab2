"""MMA beside a twin written from the formula; its memory is saved, resumed and the same on two ranks."""

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.forward import Outputs
from rattle.objectives.base import Memory, StepContext, total
from rattle.objectives.loss import compute_loss
from rattle.objectives.mma import MMA
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from support.steps import assert_same_gradient

N, SHAPE = 12, (1, 3, 3)


def network(classes: int) -> nn.Module:
    torch.manual_seed(classes)
    sharp = nn.Linear(8, classes)
    nn.init.normal_(sharp.weight, std=8.0)  # p_y > 1/2 somewhere, also among 100 classes
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), sharp).double()


def images(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Random images, labelled as the model sees them; every fourth is mislabelled."""
    x = torch.rand(N, *SHAPE, dtype=torch.float64)
    y = model(x).argmax(1)
    return x, torch.where(torch.arange(N) % 4 == 0, (y + 1) % 3, y)


def context(margin: Tensor) -> StepContext:
    draws = ImageStreams(3, torch.arange(N))
    return StepContext(draws=draws, memory=Memory({"margin": margin}, torch.arange(N)))


def loss_of_one(model: nn.Module, x: Tensor, y: int) -> Tensor:
    """SLM: log sum_{k != y} exp f_k(x) - f_y(x), of one image."""
    z = model(x[None])[0]
    return torch.log(sum(torch.exp(z[k] - z[y]) for k in range(len(z)) if k != y))


def boundary_twin(
    model: nn.Module, x: Tensor, y: int, noise: Tensor, settings: tuple[float, float, float, str], steps: int = 5
) -> tuple[Tensor, float]:
    """AN-PGD of one image, plain: PGD of length eps, then ten halvings of [0, 1.05 d_max] along its direction."""
    eps, d_max, epsilon_min, norm = settings
    if loss_of_one(model, x, y) >= 0:
        return x, 0.0
    eps = max(eps, epsilon_min)
    point = (x + eps * noise).clamp(0, 1)
    for _ in range(steps):
        leaf = point.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss_of_one(model, leaf, y), leaf)
        point = point + 2.5 * eps / steps * (g.sign() if norm == "linf" else g / g.norm())
        delta = point - x
        delta = delta.clamp(-eps, eps) if norm == "linf" else delta * min(1.0, eps / float(delta.norm()))
        point = (x + delta).clamp(0, 1)
    delta = point - x
    unit = delta / (delta.abs().max() if norm == "linf" else delta.norm())
    low, high, d = 0.0, 1.05 * d_max, eps
    for _ in range(10):
        inside = loss_of_one(model, (x + d * unit).clamp(0, 1), y) < 0
        low, high = (d, high) if inside else (low, d)
        d = (low + high) / 2
    return (x + d * unit).clamp(0, 1), d


def starts(norm: str) -> Tensor:
    """The noise of the uniform start, in units of the radius."""
    draws = ImageStreams(3, torch.arange(N))
    if norm == "linf":
        return 2 * draws.uniform(*SHAPE).double() - 1
    direction = draws.normal(*SHAPE).double()
    radius = draws.uniform(1, 1, 1).double() ** (1 / 9)
    return radius * direction / direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


@pytest.mark.parametrize(("classes", "norm"), [(3, "linf"), (10, "linf"), (100, "linf"), (10, "l2")])
def test_points_margins_loss_and_gradient_are_those_of_the_twin(classes: int, norm: str) -> None:
    model = network(classes)
    (x, y), margin = images(model), torch.linspace(0, 1, N, dtype=torch.float64)
    epsilon, objective = {"linf": 0.05, "l2": 0.1}[norm], MMA(d_max=2.0)
    d_max, before = 2 * epsilon, margin.clone()
    step = context(margin)
    attack = objective.attack(PGD(threat=Threat(norm=norm, epsilon=epsilon), steps=5), step)
    x_adv = attack(model, x, y, generator=step.draws)
    noise, twin = starts(norm), []
    for i in range(N):
        settings = (float(before[i]) * d_max, d_max, 0.16 * epsilon, norm)
        twin.append(boundary_twin(model, x[i], int(y[i]), noise[i], settings))
    torch.testing.assert_close(x_adv, torch.stack([point for point, _ in twin]), atol=1e-6, rtol=0)
    distances = torch.tensor([d for _, d in twin], dtype=torch.float64)
    torch.testing.assert_close(margin * d_max, distances, atol=1e-6, rtol=0)
    assert (distances == 0).any()  # some were misclassified
    assert ((distances > 0) & (distances < d_max)).any()  # some were brought to their boundary
    assert classes != 10 or norm != "linf" or (distances > d_max).any()  # and some lie beyond d_max

    loss = total(objective.terms(Outputs(model(x), model(x_adv)), y, step))
    wanted = torch.zeros((), dtype=torch.float64)
    for i in range(N):
        clean, pushed = (-model(p[None]).log_softmax(1)[0, y[i]] for p in (x[i], x_adv[i]))
        wanted = wanted + clean / 3 / N + (2 / 3 * pushed / N if distances[i] < d_max else 0)
    assert_same_gradient(loss, wanted, model.parameters())


def test_a_loop_of_ones_own_is_told_that_it_has_no_memory() -> None:
    x = torch.rand(2, *SHAPE)
    with pytest.raises(RattleError, match=r"MMA needs .*a state.*rattle\.fit"):
        compute_loss(MMA(), nn.Flatten(), x, x, torch.zeros(2).long())
