"""Weights from elsewhere: each public layout opens, nothing in a file runs, and what does not fit is said in words."""

from __future__ import annotations

import argparse
import copy
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.models import load_weights
from rattle.models.layers import Normalise
from rattle.models.pretrained import adapt, file_normalisation
from rattle.models.registry import create_model

State = dict[str, Tensor]
CIFAR = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
X = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def trained(name: str, **options: object) -> nn.Module:
    """A slim network whose statistics and biases are not the initial ones."""
    torch.manual_seed(1)
    model = create_model(name, **{"classes": 4, "width": 4} | options)
    for _ in range(2):
        model(torch.rand(8, 3, 16, 16))
    return model.eval()


def fresh(name: str, **options: object) -> nn.Module:
    return create_model(name, **{"classes": 4, "width": 4} | options).eval()


def renamed(state: State, *rules: tuple[str, str]) -> State:
    out = dict(state)
    for pattern, theirs in rules:
        out = {re.sub(pattern, theirs, name): tensor for name, tensor in out.items()}
    return out


def trades_wrn(state: State) -> State:
    rules = (r"^bn\.", "bn1."), (r"^block(\d)\.", r"block\1.layer."), (r"shortcut\.", "convShortcut."), ("^head", "fc")
    theirs = renamed(state, *rules)
    unused = {f"sub_{k}": torch.randn_like(v.float()) for k, v in theirs.items() if k.startswith("block1.")}
    return theirs | unused


def rice_preact(state: State) -> State:
    return renamed(state, (r"shortcut\.", "shortcut.0."), (r"^head", "linear"))


def deepmind_wrn(state: State) -> State:
    theirs = renamed(state, (r"^conv1", "init_conv"), (r"^bn\.", "batchnorm."), ("^head", "logits"))
    theirs = {re.sub(r"^block(\d)", lambda m: f"layer.{int(m[1]) - 1}.block", k): v for k, v in theirs.items()}
    rules = (r"\.bn1", ".batchnorm_0"), (r"\.bn2", ".batchnorm_1"), (r"\.conv1", ".conv_0"), (r"\.conv2", ".conv_1")
    return renamed(theirs, *rules, (r"^normalise\.", ""))


def parallel(state: State) -> State:
    return {f"module.{name}": tensor for name, tensor in state.items()}


LAYOUTS: dict[str, tuple[str, Callable[[State], State]]] = {
    "trades": ("wrn10-2", trades_wrn),
    "awp, mart, the authors: trades in parallel": ("wrn10-2", lambda s: parallel(trades_wrn(s))),
    "robust_overfitting": ("preact18", rice_preact),
    "mart, resnet": ("resnet18", lambda s: parallel(renamed(s, ("^head", "linear")))),
    "robustbench, DeepMind's": ("wrn10-2-dm", deepmind_wrn),
    "kuangliu, vgg": ("vgg16", lambda s: renamed(s, ("^layers", "features"), ("^head", "classifier"))),
    "kuangliu, mobilenet": ("mobilenetv2", lambda s: renamed(s, ("^head", "linear"))),
    "our own, compiled": ("preact18", lambda s: {f"_orig_mod.{k}": v for k, v in s.items()}),
    "averaged": ("preact18", lambda s: parallel(rice_preact(s)) | {"n_averaged": torch.tensor(3)}),
    "chen 2020": ("wrn10-2", lambda s: {f"model.{k}": v for k, v in trades_wrn(s).items()}),
    "before batches were counted": (
        "preact18",
        lambda s: {k: v for k, v in rice_preact(s).items() if "num_batches_tracked" not in k},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_from_elsewhere_gives_equal_logits(layout: str, tmp_path: Path) -> None:
    name, theirs = LAYOUTS[layout]
    source = trained(name)
    torch.save(theirs(source.state_dict()), tmp_path / "model.pt")
    model = fresh(name)
    assert not torch.allclose(model(X), source(X))
    load_weights(tmp_path / "model.pt", model)
    assert torch.equal(model(X), source(X))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"state_dict": s, "test_acc": 0.5, "epoch": 3},
        lambda s: {"model": parallel(s), "optimizer": {"state": {}}},
        lambda s: {"model_state_dict": s, "unaveraged_model_state_dict": {"x.y": X}},
        lambda s: {"net": s, "acc": np.float64(0.5), "args": argparse.Namespace(lr=0.1)},
        lambda s: {"ema_state_dict": s, "optimizer_state_dict": {}},
        lambda s: {"last": s, "best": {"x.y": X}},
        lambda s: {"model": {"state_dict": s}},
    ],
)
def test_a_wrapper_around_the_weights_is_taken_off(wrap: Callable, tmp_path: Path) -> None:
    source = trained("preact18")
    torch.save(wrap(rice_preact(source.state_dict())), tmp_path / "model.pt")
    model = fresh("preact18")
    load_weights(tmp_path / "model.pt", model)
    assert torch.equal(model(X), source(X))


def test_safetensors_and_the_old_format_of_torch_open_too(tmp_path: Path) -> None:
    source = trained("wrn10-2")
    theirs = trades_wrn(source.state_dict())
    save_file({k: v.contiguous() for k, v in theirs.items()}, tmp_path / "model.safetensors")
    torch.save(theirs, tmp_path / "model.pt", _use_new_zipfile_serialization=False)
    for path in tmp_path.iterdir():
        model = fresh("wrn10-2")
        load_weights(path, model)
        assert torch.equal(model(X), source(X))


MU, SIGMA = (torch.tensor(values) for values in CIFAR)


@pytest.mark.parametrize(
    "theirs",
    [
        lambda net: nn.Sequential(Normalise(*CIFAR), net).state_dict(),
        lambda net: parallel(nn.Sequential(Normalise(*CIFAR), net).state_dict()),
        lambda net: net.state_dict() | {"mu": MU.view(1, 3, 1, 1), "sigma": SIGMA.view(1, 3, 1, 1)},
        lambda net: net.state_dict() | {"normalize.mean": MU, "normalize.std": SIGMA},
    ],
    ids=["in sequence", "in sequence, parallel", "mu and sigma", "normalize"],
)
def test_the_file_s_normalisation_is_loaded_or_required_but_never_dropped(theirs: Callable, tmp_path: Path) -> None:
    net = trained("preact18")
    path = tmp_path / "model.pt"
    torch.save(theirs(net), path)
    statistics = file_normalisation(path)
    assert statistics == CIFAR
    model = fresh("preact18", normalise=statistics)
    load_weights(path, model)
    torch.testing.assert_close(model(X), net(Normalise(*CIFAR)(X)))
    with pytest.raises(RattleError, match=r"normalise=\(\(0.4914, 0.4822, 0.4465\), \(0.2471"):
        load_weights(path, fresh("preact18"))


def test_deepmind_s_weights_are_not_put_into_the_usual_network_or_the_reverse() -> None:
    usual, deepmind = trained("wrn10-2"), trained("wrn10-2-dm")
    with pytest.raises(RattleError, match="add -dm"):
        adapt(deepmind_wrn(deepmind.state_dict()), usual)
    with pytest.raises(RattleError, match="leave out -dm"):
        adapt(parallel(trades_wrn(usual.state_dict())), deepmind)


def test_fine_tuning_keeps_a_fresh_head_for_other_classes_and_loads_one_of_as_many() -> None:
    source = trained("preact18")
    state = parallel(rice_preact(source.state_dict()))
    model = fresh("preact18", classes=7)
    with pytest.raises(RattleError, match=r"head.weight \[4, 32\] instead of \[7, 32\]"):
        adapt(state, model)
    kept = model.load_state_dict(adapt(state, model, fresh_head=True), strict=False).missing_keys
    assert kept == ["head.weight", "head.bias"]
    assert torch.equal(model.features(X), source.features(X))
    assert set(adapt(state, source, fresh_head=True)) == set(source.state_dict())


def test_what_does_not_match_is_a_short_list_and_changes_nothing(tmp_path: Path) -> None:
    torch.save(trained("resnet18").state_dict(), tmp_path / "model.pt")
    model = fresh("preact18")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RattleError, match=r"PreActResNet: .*unexpected layer2.0.shortcut.1.weight, "):
        load_weights(tmp_path / "model.pt", model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("new", [True, False])
def test_a_malicious_file_or_a_pickled_model_is_refused_and_nothing_in_it_runs(new: bool, tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "model.pt"
    malicious = {"state_dict": {"a.b": X}, "extra": Malicious(marker)}
    for saved, named in ((malicious, r"\w+\.mkdir"), (fresh("cnn"), "SmallCNN")):
        torch.save(saved, path, _use_new_zipfile_serialization=new)
        with pytest.raises(RattleError, match=rf"{named}.*save model.state_dict\(\)"):
            load_weights(path, fresh("cnn"))
    assert not marker.exists()


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"<html>quota exceeded</html>", None])
def test_a_broken_file_is_refused(name: str, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is None:
        state = fresh("cnn").state_dict()
        torch.save(state, path) if name.endswith("pt") else save_file(state, path)
        content = path.read_bytes()[:-300]
    path.write_bytes(content)
    with pytest.raises(RattleError, match="is not a file of weights"):
        load_weights(path, fresh("cnn"))


def test_a_missing_file_and_a_file_without_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="no file of weights at"):
        load_weights(tmp_path / "absent.pt", fresh("cnn"))
    torch.save({"epoch": 3, "best_acc": 0.5}, tmp_path / "model.pt")
    with pytest.raises(RattleError, match=r"no state dict; .*epoch, best_acc"):
        load_weights(tmp_path / "model.pt", fresh("cnn"))


class Wrapped(nn.Module):
    """A network behind its normalisation, as many publish it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.mean, self.std = nn.Buffer(torch.full((3, 1, 1), 0.4)), nn.Buffer(torch.full((3, 1, 1), 0.3))
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.std)


def test_bare_weights_open_in_a_wrapper() -> None:
    source, model = trained("cnn"), Wrapped(fresh("cnn"))
    kept = model.load_state_dict(adapt(source.state_dict(), model), strict=False).missing_keys
    assert kept == ["mean", "std"]
    assert torch.equal(model.net.eval()(X), source(X))


def test_any_prefix_of_the_file_is_left_out() -> None:
    source = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    state = {f"whatever.inner.{name}": value for name, value in source.state_dict().items()}
    assert set(adapt(state, source)) == set(source.state_dict())
    with pytest.raises(RattleError, match=r"missing 2\.bias"):
        adapt({name: value for name, value in state.items() if not name.endswith("2.bias")}, source)
    with pytest.raises(RattleError, match=r"unexpected whatever\.other\.weight"):
        adapt(state | {"whatever.other.weight": X}, source)
