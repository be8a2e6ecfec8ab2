"""Export: the file computes what the model does, or it does not appear."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.errors import RattleError
from rattle.models import load_weights
from rattle.models.export import export, logit_difference
from rattle.models.registry import create_model

X = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
NAMES = ["cnn", "preact18", "resnet18", "wrn10-1", "wrn10-1-dm", "vgg16", "mobilenetv2"]


def slim(name: str = "cnn") -> nn.Module:
    return create_model(name, classes=4, width=4, normalise=((0.5,) * 3, (0.25,) * 3)).to(
        memory_format=torch.channels_last
    )


SLOW = [pytest.param(name, format, marks=pytest.mark.slow) for format in ("torchscript", "onnx") for name in NAMES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "format"), [*((name, "safetensors") for name in NAMES), ("wrn10-1-dm", "torchscript"), *SLOW]
)
def test_an_exported_file_computes_what_the_model_does(name: str, format: str, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ():
        pytest.importorskip(package)
    model = slim(name)
    path = export(model, X, tmp_path / "new" / f"model.{format}", format)
    assert logit_difference(model, X[:2], path, format) < (1e-4 if format == "onnx" else 1e-5)
    assert model.training
    if format == "safetensors":
        load_weights(path, slim(name))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


class Fickle(nn.Module):
    """Gives another answer at every call, which a trace cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x.flatten(1)) * self.calls


def test_a_file_that_computes_something_else_does_not_appear(tmp_path: Path) -> None:
    path = tmp_path / "model.torchscript"
    path.write_text("the former one")
    with pytest.raises(RattleError, match="logits differ by"):
        export(Fickle(), torch.rand(2, 3, 2, 2), path, "torchscript")
    assert path.read_text() == "the former one"
    assert list(tmp_path.iterdir()) == [path]


def test_onnx_names_the_extra_when_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(RattleError, match=r"pip install 'rattle-robust\[onnx\]'"):
        export(slim(), X, tmp_path / "model.onnx", "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("example", "format", "words"),
    [(X, "onx", "did you mean 'onnx'"), (X[0], "onnx", r"\[n, C, H, W\]"), (X[:0], "onnx", r"\[n, C, H, W\]")],
)
def test_an_export_with_invalid_arguments_is_refused(
    example: torch.Tensor, format: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(RattleError, match=words):
        export(slim(), example, tmp_path / "model", format)
