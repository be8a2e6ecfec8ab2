"""Models as people publish them, opened by the documented command alone; accuracy is that of the plain module."""

import json
from collections import OrderedDict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rattle
from rattle.attacks.registry import get_attack
from rattle.errors import RattleError
from rattle.evaluation.normalisation import missing_normalisation
from rattle.evaluation.verify import verify
from rattle.integrations import AutoAttack
from rattle.models.layers import Normalise
from rattle.threat import Threat
from support.command import Command
from support.tiny_runs import digits, linear, small_cnn

MODELS = """
import torch
from torch import nn

class View(nn.Module):
    def __init__(self, channels=1, side=28, classes=10):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, stride=2, padding=1)
        self.fc = nn.Linear(4 * (side // 2) ** 2, classes)

    def forward(self, x):
        x = self.conv(x).relu()
        return self.fc(x.view(x.size(0), -1))

def sequential():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))

class Norm(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.3]).view(1, 1, 1))
        self.register_buffer("std", torch.tensor([0.4]).view(1, 1, 1))
        self.net = net

    def forward(self, x):
        return self.net((x - self.mean) / self.std)

def wrapped():
    return Norm(sequential())
"""
NAMES: dict = {}
exec(MODELS, NAMES)


def data(side: int = 8, channels: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Digits as uint8 [n, channels, side, side], for training and for test."""
    x, y, x_test, y_test = digits()
    large, large_test = (F.interpolate(v.float(), side).byte().expand(-1, channels, -1, -1) for v in (x, x_test))
    return large, y, large_test, y_test


def teach(model: nn.Module, x: Tensor, y: Tensor, *, steps: int = 30, mean: float = 0.0, std: float = 1.0) -> nn.Module:
    """Plain torch: what a script somewhere does to its images before the model sees them."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for i in range(steps):
        rows = torch.arange(64 * i, 64 * (i + 1)) % len(y)
        optimizer.zero_grad()
        F.cross_entropy(model((x[rows] / 255 - mean) / std), y[rows]).backward()
        optimizer.step()
    return model.eval()


def right(model: nn.Module, x: Tensor, y: Tensor) -> list[int]:
    with torch.no_grad():
        return (model(x).argmax(1) == y).int().tolist()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flags(command: Command, *words: str) -> list[int]:
    return json.loads(command("evaluate", *words, "--attacks", "pgd2", "--json"))["clean_flags"]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_that_flattens_by_view_on_images_of_an_npz(channels: int, here: Path, command: Command) -> None:
    x, y, x_test, y_test = data(28, channels)
    torch.manual_seed(0)
    model = teach(NAMES["View"](channels), x, y)
    torch.save(model.state_dict(), "view.pt")
    images = x_test[:80].permute(0, 2, 3, 1).squeeze(-1)  # as most files hold them: channels last, or none
    np.savez("digits28.npz", x_test=images.numpy(), y_test=y_test[:80].numpy())
    expected = right(model, x_test[:80] / 255, y_test[:80])
    assert sum(expected) > 40
    words = ["--model", "models.py:View", "--weights", "view.pt", "--data", "digits28.npz"]
    assert flags(command, *words) == expected
    few, labels = x_test[:8], y_test[:8]
    for given in (few, few / 255, (few / 255).to(memory_format=torch.channels_last)):
        found = rattle.evaluate(model, given, labels, ["fgsm", "pgd2", "apgd-ce"], epsilon=0.01, check_model=True)
        assert found.clean == list(map(bool, expected[:8]))
        points = (given / 255 if given is few else given).to(memory_format=torch.channels_last)
        assert verify(model, given, labels, points, Threat()).tolist() == [not flag for flag in found.clean]


SAVED = {  # with "net." and the wrapper's statistics, or without a trace of them
    "wrapper": lambda name: name,
    "parallel": lambda name: f"module.{name}",
    "parallel inside": lambda name: name.replace("net.", "net.module."),
    "bare": lambda name: name.removeprefix("net."),
    "compiled": lambda name: name.replace("net.", "_orig_mod."),
    "lightning": lambda name: name.replace("net.", "classifier_under_test."),
}


@pytest.mark.parametrize("build", ["wrapped", "sequential"])
@pytest.mark.parametrize("saved", SAVED)
def test_a_wrapped_module_opens_however_it_was_saved(build: str, saved: str, here: Path, command: Command) -> None:
    x, y, x_test, y_test = digits()
    torch.manual_seed(0)
    model = teach(NAMES["wrapped"](), x, y, steps=15)
    bare = saved in ("bare", "compiled", "lightning")
    state = {SAVED[saved](k): v for k, v in model.state_dict().items() if not bare or k.startswith("net.")}
    torch.save(state, "w.pt")
    words = ["--model", f"models.py:{build}", "--weights", "w.pt", "--data", "digits"]
    words += ["--mean", "0.3", "--std", "0.4"] if bare and build == "sequential" else []
    assert flags(command, *words) == right(model, x_test / 255, y_test)


@pytest.mark.filterwarnings("ignore")
def test_a_timm_model_with_weights_from_a_file(here: Path, command: Command) -> None:
    timm = pytest.importorskip("timm")
    spec = "vit_tiny_patch16_224,img_size=16,patch_size=8,depth=2,embed_dim=48,num_heads=3"
    settings = {"img_size": 16, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 3}
    y_test = digits()[3]
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, in_chans=1, **settings)
    scaled = rattle.data.Data(name="digits", resize=16).source()
    teach(model, scaled.train.x, scaled.train.y, mean=0.5, std=0.5)
    torch.save(model.state_dict(), "vit.pt")
    expected = right(model, scaled.test.x / 255 * 2 - 1, y_test)
    assert sum(expected) > 200
    words = ["--model", f"timm:{spec}", "--weights", "vit.pt", "--data", "digits", "--mean", "0.5", "--std", "0.5"]
    assert flags(command, *words, "--resize", "16") == expected
    assert flags(command, *words[:1], f"timm:{spec},pretrained", *words[2:6], "--resize", "16") == expected


class Returns(nn.Module):
    """The small CNN with its logits inside something."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.net, self.kind = small_cnn(), kind

    def forward(self, pixel_values: Tensor):
        z = self.net(pixel_values)
        return {
            "object": SimpleNamespace(logits=z, loss=None),
            "dict": OrderedDict(logits=z),
            "tuple": (z, pixel_values),
            "one": z[:, :1],
        }[self.kind]


@pytest.mark.parametrize("kind", ["object", "dict", "tuple"])
def test_logits_are_taken_out_of_what_a_model_returns(kind: str) -> None:
    _, _, x, y = digits()
    model, plain, settings = Returns(kind), small_cnn(), {"epsilon": 0.05, "check_model": True}
    found, expected = (rattle.evaluate(m, x[:9], y[:9], ["pgd3", "apgd-ce"], **settings) for m in (model, plain))
    assert found.clean == expected.clean
    assert [a.flags for a in found.attacks.values()] == [a.flags for a in expected.attacks.values()]
    drop_in = AutoAttack(model, eps=0.05, version="custom", attacks_to_run=["apgd-ce"], seed=0, verbose=False)
    assert drop_in.run_standard_evaluation(x[:3] / 255, y[:3], return_labels=True)[1].shape == (3,)
    for mode in ("head", "exact", "sampled"):
        objective, noise = rattle.Trades(taylor=rattle.Taylor(order=2, mode=mode)), rattle.Noise(sigma=0.01)
        losses = []
        for m in (model, plain):
            u = (noise(m, generator=torch.Generator().manual_seed(0)),)
            losses.append(rattle.compute_loss(objective, m, x[:4] / 255, x[4:8] / 255, y[:4], u=u))
        assert torch.equal(*losses)


def test_a_built_model_returns_its_logits_under_the_names_it_has(here: Path) -> None:
    (here / "mine.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, classes): super().__init__(4, classes)\n"
        "    def forward(self, pixel_values): return {'logits': super().forward(pixel_values)}\n"
    )
    model = rattle.create_model("mine.py:Net", classes=3)
    assert model(torch.rand(2, 4)).shape == (2, 3)
    assert list(model.state_dict()) == ["weight", "bias"]


ONE_LOGIT = {
    name: get_attack(name, Threat(epsilon=0.1)) for name in ("pgd3", "cw3", "apgd-ce", "fab", "square", "rays")
}
ONE_LOGIT |= {"kl": rattle.PGD(loss="kl", steps=1), "evaluate": partial(rattle.evaluate, attacks="fgsm")}


@pytest.mark.parametrize("name", ONE_LOGIT)
def test_a_model_of_one_logit_is_told_to_return_two(name: str) -> None:
    _, _, x, y = digits()
    with pytest.raises(RattleError, match=r"one logit z, \[n, 1\]: return two"):
        ONE_LOGIT[name](Returns("one"), x[:4] / 255, y[:4])


class Binarises(nn.Module):
    """Undoes MNIST's normalisation and keeps the ink: sees nothing at all in images that were not normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(torch.sigmoid(100 * (x * 0.3081 + 0.1307 - 0.5)))


def test_missing_normalisation_is_hinted_at() -> None:
    _, _, x, y = digits()
    x, y = x[:200] / 255, y[:200]
    (hint,) = missing_normalisation(Binarises(), x, y)
    assert "MNIST" in hint
    assert "--mean 0.1307 --std 0.3081" in hint
    assert not list(missing_normalisation(nn.Sequential(Normalise((0.1307,), (0.3081,)), Binarises()), x, y))
    assert not list(missing_normalisation(Binarises(), x[:20], y[:20]))
    assert "--mean 0.1307" in rattle.benchmark(Binarises(), (x[:60], y[:60]), attacks="fgsm").warnings[-1]
