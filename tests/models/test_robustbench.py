"""Networks as RobustBench has them: its names, its classes' logits, and files that need nothing of this package."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.models import load_weights
from rattle.models.pretrained import file_normalisation
from rattle.models.registry import create_model, register_model
from rattle.models.robustbench import Architecture, find_architecture, model_file, robustbench_weights
from rattle.models.user import import_builder

CIFAR = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def trained(name: str, **options: Any) -> nn.Module:
    """A network whose statistics and biases are not the initial ones."""
    torch.manual_seed(1)
    model = create_model(name, **{"classes": 10, "channels": 3} | options)
    model(torch.rand(8, 3, 32, 32))
    return model.eval().requires_grad_(False)


def exported(name: str, folder: Path, **options: Any) -> tuple[nn.Module, Architecture, dict[str, Tensor]]:
    """A trained network, its architecture and weights; with its files model.py and net.pt in the folder."""
    model = trained(name, **options)
    known = {key: value for key, value in options.items() if key in ("width", "activation")}
    architecture = find_architecture(model, name, (3, 32, 32), **known)
    weights = robustbench_weights(model, architecture)
    torch.save(weights, folder / "net.pt")
    settings = {"timm_name": "net_cifar10_linf", "weights": "net.pt", "shape": (3, 32, 32), "classes": 10}
    (folder / "model.py").write_text(model_file(architecture, method="TRADES", **settings))
    return model, architecture, weights


def run_file(folder: Path) -> nn.Module:
    with warnings.catch_warnings(action="ignore"):  # of timm and robustbench, where they are installed
        return import_builder(f"{folder / 'model.py'}:load")()


@pytest.mark.parametrize("name", ["wrn16-1", "wrn16-1-dm", "resnet18", "preact18"])
def test_weights_bear_the_names_and_shapes_of_robustbench_and_load_again(name: str, tmp_path: Path) -> None:
    lines = (Path(__file__).parent / "robustbench_names.txt").read_text().splitlines()
    theirs = [line.split(" ", 1)[1] for line in lines if line.split()[0] == name]
    model, architecture, weights = exported(name, tmp_path)
    assert architecture.from_robustbench
    assert sorted(f"{k} {'x'.join(map(str, v.shape))}".strip() for k, v in weights.items()) == sorted(theirs)
    again = create_model(name, classes=10).eval()
    load_weights(tmp_path / "net.pt", again)
    assert torch.equal(again(X[:1]), model(X[:1]))


@pytest.mark.parametrize(("name", "stored"), [("wrn10-1", CIFAR), ("wrn10-1-dm", None)])
def test_normalisation_is_stored_except_by_deepmind_s_class_which_is_built_with_it(
    name: str, stored: Any, tmp_path: Path
) -> None:
    model, architecture, _ = exported(name, tmp_path, normalise=CIFAR)
    assert file_normalisation(tmp_path / "net.pt") == stored
    assert ("mean=[0.491400003" in architecture.arguments) == (stored is None)
    again = create_model(name, classes=10, normalise=CIFAR).eval()
    load_weights(tmp_path / "net.pt", again)
    assert torch.equal(again(X), model(X))


OWN: dict[str, dict[str, Any]] = {
    "cnn-slim": {"normalise": CIFAR},
    "vgg16": {"width": 4},
    "mobilenetv2": {"width": 4, "activation": "silu"},
    "preact50": {"width": 4},
    "resnet18": {"width": 4},
    "wrn10-2": {"activation": "silu"},
    "wrn10-1-dm": {"width": 8, "normalise": CIFAR},
}


@pytest.mark.parametrize("name", OWN)
def test_a_network_that_robustbench_lacks_brings_its_source_along(name: str, tmp_path: Path) -> None:
    model, architecture, _ = exported(name, tmp_path, **OWN[name])
    text = (tmp_path / "model.py").read_text()
    assert not architecture.from_robustbench
    assert "from rattle" not in text
    assert "import rattle" not in text
    assert torch.equal(run_file(tmp_path)(X), model(X))


def test_images_of_another_size_take_our_source_since_robustbench_pools_for_32x32() -> None:
    assert not find_architecture(trained("wrn10-1"), "wrn10-1", (3, 64, 64)).from_robustbench


def test_a_network_of_one_s_own_is_refused() -> None:
    register_model("mine-for-robustbench", lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(3072, classes)))
    for name in ("mine-for-robustbench", "net.py:build"):
        with pytest.raises(RattleError, match=rf"the source of {name} is not known here.*export safetensors"):
            find_architecture(trained("mine-for-robustbench"), name, (3, 32, 32))


CLASSES = [("wrn10-2", {}), ("wrn10-2-dm", {}), ("wrn10-2-dm", {"activation": "silu"}), ("resnet18", {})]
CLASSES += [("preact18", {}), ("preact34", {})]


@pytest.mark.parametrize("normalise", [None, CIFAR, ((0.5,), (0.2,))], ids=["plain", "normalised", "one value for all"])
@pytest.mark.parametrize(("name", "options"), CLASSES)
def test_robustbench_s_own_class_gives_equal_logits(
    name: str, options: dict[str, Any], normalise: Any, tmp_path: Path
) -> None:
    with warnings.catch_warnings(action="ignore"):
        pytest.importorskip("robustbench")
    model, architecture, _ = exported(name, tmp_path, normalise=normalise, **options)
    net = run_file(tmp_path)
    assert architecture.from_robustbench
    assert type(net).__mro__[1].__module__.startswith("robustbench.")
    torch.testing.assert_close(net(X), model(X), rtol=1e-5, atol=1e-6)
