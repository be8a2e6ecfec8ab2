"""Export: a trained model as safetensors, TorchScript or ONNX, checked against the model before the file appears."""

from __future__ import annotations

import copy
import importlib
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rattle.errors import RattleError, unknown

Format = Literal["safetensors", "torchscript", "onnx"]
TOLERANCE = 1e-4  # of the largest logit, at least 1: float32 in another order of summation stays far below


def export(model: nn.Module, example: Tensor, path: str | Path, format: Format = "safetensors") -> Path:
    """Write the model to path; the file appears only when its logits on the example [n, C, H, W] equal the model's."""
    if format not in WRITERS:
        raise unknown("export format", format, WRITERS)
    if example.ndim != 4 or len(example) == 0:
        raise RattleError(f"export needs example images [n, C, H, W], got shape {list(example.shape)}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    still, x = _frozen(model), example.detach().cpu().contiguous()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        written = Path(folder) / path.name
        WRITERS[format](still, x, written)
        gap = difference(still, x, written, format)
        with torch.no_grad():
            allowed = TOLERANCE * max(1.0, float(still(x).abs().max()))
        if not gap <= allowed:  # also true for NaN
            raise RattleError(
                f"the {format} file does not compute what the model does: logits differ by {gap:.3g} "
                f"(allowed {allowed:.3g}); nothing was written to {path}"
            )
        os.replace(written, path)
    return path


def difference(model: nn.Module, example: Tensor, path: str | Path, format: Format = "safetensors") -> float:
    """The largest absolute difference between the logits of the exported file and the model's, on all and on one."""
    still, x = _frozen(model), example.detach().cpu().contiguous()
    run = READERS[format](still, Path(path))
    with torch.no_grad():
        return max(float((run(part) - still(part)).abs().max()) for part in (x, x[:1]))


def _frozen(model: nn.Module) -> nn.Module:
    still = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    for tensor in (*still.parameters(), *still.buffers()):
        tensor.data = tensor.data.contiguous()  # channels_last in training; files are plain
    return still


def _write_safetensors(model: nn.Module, example: Tensor, path: Path) -> None:
    from safetensors.torch import save_model

    save_model(model, str(path), metadata={"format": "pt"})


def _read_safetensors(model: nn.Module, path: Path) -> Callable[[Tensor], Tensor]:
    from safetensors.torch import load_model

    again = copy.deepcopy(model)
    for tensor in again.state_dict().values():
        tensor.zero_()  # so that whatever the file lacks shows
    load_model(again, str(path))
    return again


def _write_torchscript(model: nn.Module, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit's, in favour of torch.export
        traced: Any = torch.jit.trace(model, example, check_trace=False)
        torch.jit.save(traced, str(path))


def _read_torchscript(model: nn.Module, path: Path) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(str(path), map_location="cpu")


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RattleError(
            f"exporting to onnx needs {name}, which is not installed: pip install 'rattle-robust[onnx]'"
        ) from error


def _write_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        _needed(name)
    batch = torch.export.Dim("batch", min=1)
    twice = torch.cat([example, example])  # a batch of one would be taken for a constant
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about itself
        torch.onnx.export(
            model,
            (twice,),
            str(path),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: batch},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _read_onnx(model: nn.Module, path: Path) -> Callable[[Tensor], Tensor]:
    session = _needed("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


WRITERS: dict[str, Callable[[nn.Module, Tensor, Path], None]] = {
    "safetensors": _write_safetensors,
    "torchscript": _write_torchscript,
    "onnx": _write_onnx,
}
READERS: dict[str, Callable[[nn.Module, Path], Callable[[Tensor], Tensor]]] = {
    "safetensors": _read_safetensors,
    "torchscript": _read_torchscript,
    "onnx": _read_onnx,
}
