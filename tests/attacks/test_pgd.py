"""PGD on linear models whose optimum is known, and the contract every attack keeps."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle import losses
from rattle.attacks import PGD
from rattle.attacks.registry import get_attack
from rattle.errors import RattleError
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


class Borrowed(nn.Module):
    """A network with every kind of state an attack could leave a trace in."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5)
        self.head = nn.Linear(12, 3)
        self.fails, self.seen = fails, []
        self.conv.weight.requires_grad_(False)
        self.head.weight.grad = torch.ones_like(self.head.weight)
        self.drop.eval()  # modes differ from module to module

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("out of memory")
        self.seen.append((self.training, self.norm.training, any(p.requires_grad for p in self.parameters())))
        return self.head(self.norm(self.conv(x)).flatten(1))


def state(model: nn.Module) -> dict:
    return {
        **{f"value {k}": v.clone() for k, v in model.state_dict().items()},
        **{f"grad {k}": None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()},
        **{f"asks {k}": p.requires_grad for k, p in model.named_parameters()},
        **{f"mode {k}": m.training for k, m in model.named_modules()},
    }


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(v, b[k]) if isinstance(v, Tensor) and isinstance(b[k], Tensor) else v == b[k] for k, v in a.items()
    )


@pytest.mark.parametrize("loss", ["ce", "cw", "kl"])
@pytest.mark.parametrize("fails", [False, True])
def test_an_attack_leaves_the_model_as_it_found_it(loss: str, fails: bool) -> None:
    model, x, y = Borrowed(fails=fails), torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 2, 0])
    before, kept = state(model), x.clone()
    attack = PGD(steps=2, loss=loss, restarts=2)
    if fails:
        with pytest.raises(RuntimeError, match="out of memory"):
            attack(model, x, y)
    else:
        attack(model, x, y)
        assert set(model.seen) == {(False, False, False)}  # evaluation mode, and no weight asks for a gradient
    assert same(before, state(model))
    assert torch.equal(x, kept)


def test_an_attack_works_inside_no_grad_and_returns_no_graph() -> None:
    model, (x, y) = linear(), middling()
    with torch.no_grad():
        x_adv = PGD(threat=Threat(epsilon=EPSILON), steps=3, step_size=0.1)(model, x, y)
        assert not torch.is_grad_enabled()
    assert not x_adv.requires_grad
    assert (losses.ce(model(x_adv), y) > losses.ce(model(x), y)).all()


def test_the_same_generator_gives_the_same_points() -> None:
    model, x, y = (
        create_model("cnn", classes=3, channels=1, width=2),
        torch.rand(4, 1, 8, 8),
        torch.tensor([0, 1, 2, 0]),
    )
    attack = PGD(steps=1, restarts=2)
    first, again, other = (attack(model, x, y, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_images_result_does_not_depend_on_its_neighbours(norm: str) -> None:
    model, x, y = create_model("cnn", classes=3, channels=1, width=2), torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    attack = PGD(threat=Threat(norm=norm, epsilon=EPSILON), steps=3, step_size=0.02, restarts=2)
    whole = attack(model, x, y, generator=ImageStreams(7, torch.arange(6)))
    for part in ([4], [5, 1], [0, 2, 3]):
        index = torch.tensor(part)
        alone = attack(model, x[index], y[index], generator=ImageStreams(7, index))
        assert torch.allclose(alone, whole[index], atol=1e-5)


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


class Wrapped(nn.Module):
    """Returns what a careless model returns."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.inner, self.shape = linear(), shape

    def forward(self, x: Tensor):
        z = self.inner(x)
        return {"text": "cat", "dict": {"scores": z}, "flat": z[:, 0], "map": z[:, :, None]}[self.shape]


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ("text", "got str; wrap it"),
        ("dict", "got dict; wrap it"),
        ("flat", r"got shape \[8\]"),
        ("map", r"got shape \[8, \d+, 1\]$"),
    ],
)
def test_a_model_that_returns_no_logits_is_refused(shape: str, sentence: str) -> None:
    with pytest.raises(RattleError, match=rf"the model must return logits \[n, C\], {sentence}"):
        PGD()(Wrapped(shape), *middling())


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda x, y: (x * 2 - 1, y), r"images must lie in \[0, 1\], got \[-0.* normalise inside the model"),
        (lambda x, y: (x.fill_(float("nan")), y), r"images must lie in \[0, 1\], got \[nan, nan\]"),
        (lambda x, y: (x[:0], y[:0]), "there are no images"),
        (lambda x, y: ((x * 255).to(torch.uint8), y), "got torch.uint8; divide uint8 images by 255"),
        (lambda x, y: (x, y[:3]), "8 images but 3 labels"),
    ],
)
def test_images_that_mean_nothing_are_refused(spoil, sentence: str) -> None:
    with pytest.raises(RattleError, match=sentence):
        PGD()(linear(), *spoil(*middling()))


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"restarts": 2**31}, "attack.restarts must be at most 1,000,000, got 2147483648"),
        ({"steps": 0}, "attack.steps must be >= 1, got 0"),
        ({"restarts": 0}, "attack.restarts must be >= 1, got 0"),
        ({"step_size": -1.0}, "attack.step_size must be >= 0, got -1.0"),
        ({"loss": "hinge"}, "attack.loss must be one of ce, kl, cw, got 'hinge'"),
        ({"start": "corner"}, "attack.start must be one of gaussian, uniform, none, got 'corner'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setting: dict, sentence: str) -> None:
    with pytest.raises(RattleError, match=f"^{sentence}$"):
        PGD(**setting)
