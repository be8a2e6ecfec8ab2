"""PGD on linear models whose optimum is known, and the contract every attack keeps."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle import losses
from rattle.attacks import PGD
from rattle.attacks.registry import get_attack
from rattle.models.registry import create_model
from rattle.randomness import ImageStreams
from rattle.threat import Threat

EPSILON = 0.1


def linear(pixels: int = 6, classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))


def middling(n: int = 8) -> tuple[Tensor, Tensor]:
    """Images away from the walls of [0, 1], so that only the ball binds."""
    return 0.3 + 0.4 * torch.rand(n, 1, 2, 3), torch.arange(n) % 2


def furthest(model: nn.Module, x: Tensor, y: Tensor, norm: str) -> Tensor:
    """The point of the ball where the other class gains most on y: z_k - z_y is linear in x."""
    weight = model[1].weight.detach()
    a = (weight[1 - y] - weight[y]).view_as(x)
    unit = a.sign() if norm == "linf" else a / a.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    return x + EPSILON * unit


@pytest.mark.parametrize("start", ["none", "gaussian", "uniform"])
@pytest.mark.parametrize("loss", ["ce", "cw"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_reaches_the_optimum_of_a_linear_model(norm: str, loss: str, start: str) -> None:
    model, (x, y) = linear(), middling()
    attack = PGD(threat=Threat(norm=norm, epsilon=EPSILON), steps=40, step_size=0.02, loss=loss, start=start)
    x_adv = attack(model, x, y, generator=torch.Generator().manual_seed(0))
    best = losses.ce(model(furthest(model, x, y, norm)), y).detach()
    assert torch.allclose(losses.ce(model(x_adv), y).detach(), best, atol=1e-4)
    assert attack.threat.contains(x_adv, x).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_climbs_kl_to_the_better_end_of_the_margin(norm: str) -> None:
    model, (x, y) = linear(), middling()
    # KL(p(x) || p(x')) is convex in the margin: its maximum is at one of the two ends
    ends = [losses.kl(model(x), model(furthest(model, x, label, norm))) for label in (y, 1 - y)]
    best = torch.maximum(*ends).detach()
    attack = PGD(
        threat=Threat(norm=norm, epsilon=EPSILON), steps=40, step_size=0.02, loss="kl", start="gaussian", restarts=12
    )
    x_adv = attack(model, x, y, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(losses.kl(model(x), model(x_adv)).detach(), best, rtol=0.01, atol=1e-6)


def test_pgd_reaches_the_optimum_where_the_walls_of_the_box_bind() -> None:
    model, x, y = linear(), torch.rand(8, 1, 2, 3).round(), torch.arange(8) % 2
    x_adv = PGD(threat=Threat(epsilon=EPSILON), steps=20, step_size=0.02)(model, x, y)
    assert torch.allclose(x_adv, furthest(model, x, y, "linf").clamp(0, 1), atol=1e-6)


def test_fgsm_is_one_step_of_the_gradients_sign() -> None:
    model, y = create_model("cnn", classes=3, channels=1, width=2).eval(), torch.tensor([0, 1, 2])
    x = torch.rand(3, 1, 8, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
    wanted = (x + EPSILON * gradient.sign()).clamp(0, 1).detach()
    fgsm = get_attack("fgsm", Threat(epsilon=EPSILON))
    assert fgsm == PGD(threat=Threat(epsilon=EPSILON), steps=1, step_size=EPSILON, start="none")
    assert torch.allclose(fgsm(model, x.detach(), y), wanted, atol=1e-6)


@pytest.mark.parametrize("loss", ["ce", "cw", "kl"])
def test_restarts_are_never_worse(loss: str) -> None:
    model, x, y = (
        create_model("cnn", classes=4, channels=1, width=4).eval(),
        torch.rand(12, 1, 8, 8),
        torch.arange(12) % 4,
    )
    settings = {"threat": Threat(epsilon=EPSILON), "steps": 2, "step_size": 0.05, "loss": loss}
    found = []
    with torch.no_grad():
        reference = model(x) if loss == "kl" else y
        for restarts in (1, 2, 6):
            attack = PGD(**settings, restarts=restarts)
            x_adv = attack(model, x, y, generator=ImageStreams(0, torch.arange(12)))
            found.append(attack.sample_losses(model(x_adv), reference))
    assert (found[1] >= found[0]).all()
    assert (found[2] >= found[1]).all()
    assert (found[2] > found[0]).any()


def test_the_starts_are_where_they_say() -> None:
    x, draws = torch.full((200, 1, 4, 4), 0.5), ImageStreams(0, torch.arange(200))
    threat = Threat(epsilon=EPSILON)
    assert torch.equal(PGD(threat=threat, start="none").start_point(x, draws), x)
    gaussian = PGD(threat=threat, start="gaussian").start_point(x, draws) - x
    assert float(gaussian.std()) == pytest.approx(0.001, rel=0.05)
    uniform = PGD(threat=threat, start="uniform").start_point(x, draws) - x
    assert float(uniform.std()) == pytest.approx(EPSILON / 3**0.5, rel=0.05)
    assert float(uniform.abs().max()) <= EPSILON


class Fails(nn.Module):
    """Records in which mode it is called, and fails at the second call."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.drop, self.seen = nn.Linear(6, 2), nn.Dropout().eval(), []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.training, self.drop.training, self.head.weight.requires_grad))
        if len(self.seen) == 2:
            raise MemoryError
        return self.head(x.flatten(1))


def test_modes_and_gradients_are_restored_after_an_error() -> None:
    model = Fails()
    with pytest.raises(MemoryError):
        PGD(steps=2)(model, *middling())
    assert model.seen == [(False, False, False)] * 2  # evaluation mode, and no weight asks for a gradient
    assert (model.training, model.drop.training, model.head.weight.requires_grad) == (True, False, True)


@pytest.fixture
def counted() -> Iterator[tuple[nn.Module, list[int]]]:
    model, calls = linear(), []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    yield model, calls
    handle.remove()


@pytest.mark.parametrize(("loss", "extra"), [("ce", 0), ("cw", 0), ("kl", 1)])
def test_the_clean_target_is_computed_once(counted: tuple[nn.Module, list[int]], loss: str, extra: int) -> None:
    model, calls = counted
    PGD(steps=7, loss=loss)(model, *middling())
    assert len(calls) == 7 + extra
