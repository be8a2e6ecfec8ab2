"""Windows around a square give the logits of whole passes, wherever the square is and whatever was accepted before."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks import Square, patches
from rattle.attacks.base import attack_mode
from rattle.attacks.keeping import keeping
from rattle.attacks.patches import Answer, Patches, Plan
from rattle.attacks.reach import Layers
from rattle.attacks.rows import FlatModel
from rattle.models.registry import create_model
from rattle.randomness import ImageStreams
from rattle.threat import Threat
from support.attack_cases import robust


class Residual(nn.Module):
    """Mean and deviation, a shortcut that reads every second pixel, sums and activations in place, a second branch."""

    def __init__(self) -> None:
        super().__init__()
        self.deviation = nn.Buffer(torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1))
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.down, self.same, self.short = nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, 1, 1), nn.Conv2d(4, 6, 1, 2)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(6, 4)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        h = (x - x.new_tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / self.deviation
        h = self.act(self.norm(self.stem(h)))
        out = self.same(F.relu(self.down(h), inplace=True))
        out += self.short(h)
        return self.head(F.silu(out).mean((2, 3)) + h.amax((2, 3)).mean(1, keepdim=True))


class Named(nn.Module):
    """Arguments by name, and one that is not an image."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.act, self.two, self.head = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.LazyLinear(4)

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        h = F.leaky_relu(input=self.one(x), negative_slope=0.1)
        return self.head(self.two(self.act(input=torch.mul(h, scale))).flatten(1))


class Uneven(nn.Module):
    """A number of its own for every pixel is added between two convolutions, and channels are put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, 4, 13, 11))
        self.one, self.two, self.head = nn.Conv2d(3, 4, 5, padding=2), nn.Conv2d(8, 4, 3), nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        return self.head(self.two(torch.cat([h, h + self.place], 1)).flatten(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "pooled": lambda: nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1, groups=2)),
        *(nn.Tanh(), nn.AvgPool2d(3, 2), nn.Flatten(), nn.LazyLinear(4)),
    ),
    "even filters": lambda: nn.Sequential(
        *(nn.Conv2d(3, 5, 4, 2, 1), nn.ReLU(), nn.Conv2d(5, 6, (4, 2), (2, 1), (1, 0)), nn.Flatten(), nn.LazyLinear(4))
    ),
    "gaps": lambda: nn.Sequential(nn.Conv2d(3, 4, 2, 3), nn.Conv2d(4, 4, 1, 2), nn.Flatten(), nn.LazyLinear(4)),
    "circular": lambda: nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.LazyLinear(4))
    ),
    "residual": Residual,
    "named": Named,
    "uneven": Uneven,
}


def network(name: str, x: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = NETWORKS[name]().double().eval()
    with torch.no_grad():
        logits = model(x)
        head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        head.bias -= logits.mean(0)  # near every boundary
    return model


def images(n: int, height: int = 13, width: int = 11) -> Tensor:
    return torch.rand(n, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("most", [0.6, 1.0])
@pytest.mark.parametrize("side", [1, 2, 5])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_logits_are_those_of_whole_passes_at_every_place(
    name: str, side: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "MOST_REACHED", most)
    places = torch.cartesian_prod(torch.arange(13 - side + 1), torch.arange(11 - side + 1))
    model = network(name, images(2))
    x = images(len(places)).contiguous(memory_format=torch.channels_last)
    with attack_mode(model), torch.no_grad():
        plan = Plan(Layers(model, x[:2]), side)
        assert len(plan.windows) > 1
        known, before, changed = plan.store(x), plan.store(x), x.clone()
        for image, (top, left) in zip(changed, places.tolist(), strict=True):
            image[:, top : top + side, left : left + side] = torch.rand(3, side, side, dtype=x.dtype)
        patch = torch.stack(
            [i[:, t : t + side, j : j + side] for i, (t, j) in zip(changed, places.tolist(), strict=True)]
        )
        rows = torch.arange(len(x)).flip(0)[1:]  # not all of them, in another order
        answer = Answer(plan, known, rows, places[rows], patch[rows])
        torch.testing.assert_close(answer.logits, model(changed[rows]), rtol=0, atol=1e-12)
        assert torch.equal(known, before)
        wanted = rows % 3 == 0
        answer.accept(wanted)
        x[rows[wanted]] = changed[rows[wanted]]
        torch.testing.assert_close(known, plan.store(x), rtol=0, atol=1e-12)


class Asked:
    """Counts the answers given in windows, and their images; `pays` says yes wherever a layer has any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.images, answer = 0, 0, Patches.answer

        def counted(patches: Patches, known: Tensor, side: int, rows: Tensor, *args: Tensor) -> Answer:
            self.count, self.images = self.count + 1, self.images + len(rows)
            return answer(patches, known, side, rows, *args)

        monkeypatch.setattr(Patches, "answer", counted)
        monkeypatch.setattr(Plan, "pays", lambda plan, *_: len(plan.windows) > 1)


def attacked(model: nn.Module, x: Tensor, queries: int = 450) -> tuple[Tensor, Tensor]:
    """Adversarial images of Square at a radius that breaks some, and which are robust."""
    y = model(x).argmax(1)
    attack = Square(threat=Threat(epsilon=0.03), queries=queries, p_init=0.3)
    found = attack(model, x, y, generator=ImageStreams(0, torch.arange(len(x))))
    return found, robust(model, found, y)


@pytest.mark.parametrize("name", ["pooled", "residual"])
@torch.no_grad()
def test_square_finds_the_same_points_with_whole_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(40)
    model = network(name, x)
    plain, robust_by_plain = attacked(model, x)
    asked = Asked(monkeypatch)
    found, robust_by_windows = attacked(model, x)
    assert asked.images > 300 * robust_by_windows.sum()  # several queries of an image in one pass
    assert 0 < robust_by_plain.sum() < len(x)  # some leave the batch on the way
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-12)
    assert torch.equal(robust_by_windows, robust_by_plain)


@torch.no_grad()
def test_a_search_that_goes_on_from_a_snapshot_ends_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, x, snapshots = Asked(monkeypatch), images(20), []
    model = network("residual", x)
    with keeping(lambda snapshot: snapshots.append(copy.deepcopy(snapshot)), 0.0, {}):
        whole, _ = attacked(model, x)
    halfway = snapshots[len(snapshots) * 2 // 3]
    assert halfway["steps"]["0.known"].shape[1] > 0
    asked.count = 0
    with keeping(lambda snapshot: None, 60.0, halfway):
        resumed, _ = attacked(model, x)
    assert 0 < asked.count < len(snapshots) / 2
    assert torch.equal(resumed, whole)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if x.mean() > 0 else self.body(-x)


def mixing_pixels() -> nn.Module:
    """Its ReLU is one by name alone."""
    act = nn.ReLU()
    act.forward = lambda x: F.relu(x - x.mean((2, 3), keepdim=True))  # type: ignore[method-assign]
    return nn.Sequential(nn.Conv2d(3, 4, 3), act, nn.Conv2d(4, 4, 3), nn.Flatten(), nn.LazyLinear(4))


@pytest.mark.parametrize(
    ("make", "reason"), [(Branching, "it cannot be traced"), (mixing_pixels, "windows of its layers give other logits")]
)
@torch.no_grad()
def test_a_network_that_windows_do_not_fit_is_asked_itself_and_that_is_said_once(
    make: Callable[[], nn.Module], reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = images(12)
    model = make().double().eval()
    model(x[:2])
    plain, _ = attacked(model, x, queries=120)
    caplog.clear()
    asked = Asked(monkeypatch)
    again = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING, "rattle"):
        found = [attacked(again, x, queries=120)[0] for _ in range(2)]
    assert torch.equal(found[0], plain)
    assert torch.equal(found[1], plain)
    assert asked.count <= 2  # the trial that failed
    assert [record.getMessage().count(reason) for record in caplog.records] == [1]


def test_windows_are_used_where_they_save_and_nowhere_else() -> None:
    cnn, slim = (create_model(name, classes=10).eval() for name in ("cnn", "cnn-slim"))
    x = torch.rand(2, 3, 32, 32)
    with attack_mode(cnn), attack_mode(slim):
        large, small = Layers(cnn, x), Layers(slim, x)
        assert Plan(large, 4).pays(20)
        assert not Plan(large, 29).pays(150)  # the square is nearly the image
        assert not Plan(large, 4).pays(10**5)  # too much to store
        assert not Plan(small, 4).pays(20)  # narrow and at half resolution: calls cost more than they save
        model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), x)
        assert Patches(model, model.flat(x)).begin(model.flat(x), 4).shape == (2, 0)
