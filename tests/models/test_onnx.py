"""ONNX files as networks to evaluate: those that onnx2torch converts faithfully are measured, the others refused."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rattle
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.evaluation.network import Network
from rattle.evaluation.target import target_from_weights
from rattle.models.export import export
from rattle.models.layers import Normalise
from rattle.models.onnx import read_onnx
from rattle.models.registry import create_model

X = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
WARNINGS_ARE_THEIRS = pytest.mark.filterwarnings("default")


def need_packages() -> None:
    for name in ("onnx2torch", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)


def written(folder: Path, name: str = "cnn-strided", **export_settings: Any) -> tuple[nn.Module, Path]:
    """A network and its ONNX file; by torch's exporter with those settings where there are any."""
    model = create_model(name, classes=10, width=4).eval()
    path = folder / "net.onnx"
    if export_settings:
        torch.onnx.export(model, (X[:1],), str(path), dynamo=True, verbose=False, **export_settings)
    else:
        export(model, X, path, "onnx")
    return model, path


@pytest.mark.slow
@WARNINGS_ARE_THEIRS
@pytest.mark.parametrize("name", ["cnn-strided", "preact18"])
def test_a_converted_network_has_the_logits_and_gradients_of_its_source(tmp_path: Path, name: str) -> None:
    need_packages()
    model, path = written(tmp_path, name)
    found = read_onnx(path, X, Normalise((0.5,) * 3, (0.25,) * 3))
    x, same = X.clone().requires_grad_(), X.clone().requires_grad_()
    torch.testing.assert_close(found(x), model((same - 0.5) / 0.25), atol=1e-4, rtol=1e-4)
    for images, net in ((x, found(x)), (same, model((same - 0.5) / 0.25))):
        net[:, 0].sum().backward(inputs=[images])
    assert x.grad is not None
    assert same.grad is not None
    torch.testing.assert_close(x.grad, same.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@WARNINGS_ARE_THEIRS
def test_evaluate_measures_an_onnx_file_as_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_packages()
    model, path = written(tmp_path)
    y = model(X).argmax(1)
    np.savez(tmp_path / "images.npz", x_test=(255 * X).byte().numpy(), y_test=y.numpy())
    command = ["evaluate", "--model", str(path), "--data", str(tmp_path / "images.npz"), "--classes", "10"]
    assert main([*command, "--attacks", "pgd5", "--epsilon", "2/255"]) == 0
    said = capsys.readouterr()
    x = (255 * X).byte() / 255
    wanted = rattle.evaluate(model, x, y, "pgd5", epsilon=2 / 255, check_model=False)
    assert f"{100 * wanted.robust_accuracy:.1f}" in said.out
    assert (tmp_path / "net.onnx-results").is_dir()


@pytest.mark.slow
@WARNINGS_ARE_THEIRS
def test_files_that_would_be_measured_wrongly_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_packages()
    _, path = written(tmp_path)
    with pytest.raises(RattleError, match=r"onnxruntime does not run .* \[1, 16, 16\]"):
        read_onnx(path, X[:, :1])
    fixed = tmp_path / "fixed"
    fixed.mkdir()
    with pytest.raises(RattleError, match="free number of images"):
        read_onnx(written(fixed, input_names=["images"])[1], X)
    (tmp_path / "none.onnx").write_bytes(b"no graph")
    with pytest.raises(RattleError, match="onnxruntime does not run"):
        read_onnx(tmp_path / "none.onnx", X)
    import onnx2torch

    convert = onnx2torch.convert

    def unfaithful(graph: Any) -> nn.Module:
        model = convert(graph)
        with torch.no_grad():
            next(model.parameters()).mul_(1.5)
        return model

    monkeypatch.setattr(onnx2torch, "convert", unfaithful)
    with pytest.raises(RattleError, match="differ from onnxruntime's by"):
        read_onnx(path, X)


def test_without_the_packages_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(RattleError, match=r"pip install 'rattle-robust\[onnx\]'"):
        target_from_weights(Network(model=str(tmp_path / "net.onnx")), "digits")


def test_an_onnx_file_takes_no_weights_and_is_not_trained() -> None:
    with pytest.raises(RattleError, match="has its weights"):
        Network(model="net.onnx", weights="w.pt").check_weights()
    with pytest.raises(RattleError, match="nothing trains it"):
        create_model("net.onnx", classes=10)
