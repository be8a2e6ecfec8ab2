"""Export a trained model as safetensors, TorchScript or ONNX; the file is checked against the model first."""

import copy
import importlib
import io
import os
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from rattle.errors import RattleError, first_line, unknown

ExportFormat = Literal["safetensors", "torchscript", "onnx"]
Logits = Callable[[Tensor], Tensor]  # of images
EXPORT_TOLERANCE = 1e-4  # relative to the largest logit, at least 1; float32 sums in another order differ by far less


def export(model: nn.Module, example: Tensor, path: str | Path, format: ExportFormat = "safetensors") -> Path:
    """Write the model to a file, which appears only if its logits on the example equal the model's.

    model: left as it is. example: images [n, C, H, W] to compare on. path: file to write, replaced if it exists.
    format: ONNX needs the extra `onnx`.
    """
    if format not in EXPORT_FORMATS:
        raise unknown("export format", format, EXPORT_FORMATS)
    if example.ndim != 4 or len(example) == 0:
        raise RattleError(f"export needs example images [n, C, H, W], got shape {list(example.shape)}")
    path = Path(path)
    model, x = _plain_copies(model, example)
    write, _ = EXPORT_FORMATS[format]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
            written = Path(folder) / path.name
            write(model, x, written)
            found = logit_difference(model, x, written, format)
            allowed = EXPORT_TOLERANCE * max(1.0, float(model(x).abs().max()))
            if not found <= allowed:  # also true for NaN
                raise RattleError(
                    f"the {format} file does not compute what the model does: logits differ by {found:.3g} "
                    f"(allowed {allowed:.3g}); nothing was written to {path}"
                )
            os.replace(written, path)
    except (OSError, SafetensorError) as reason:  # a full disk, a folder that may not be written
        why = getattr(reason, "strerror", None) or first_line(reason)
        raise RattleError(f"cannot write {path}: {why}; nothing was written") from reason
    return path


def logit_difference(
    model: nn.Module, example: Tensor, path: str | Path, format: ExportFormat = "safetensors"
) -> float:
    """The largest absolute difference between the logits of an exported file and of the model.

    example: images [n, C, H, W]; compared as one batch, and the first one alone.
    """
    model, x = _plain_copies(model, example)
    _, read = EXPORT_FORMATS[format]
    run = read(model, Path(path))
    return max(float((run(part) - model(part)).abs().max()) for part in (x, x[:1]))


def _plain_copies(model: nn.Module, example: Tensor) -> tuple[nn.Module, Tensor]:
    """Copies on the CPU, the model's in evaluation mode, their tensors contiguous (in training they are not)."""
    model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return model, example.detach().cpu().contiguous()


def _write_safetensors(model: nn.Module, example: Tensor, path: Path) -> None:
    save_model(model, str(path), metadata={"format": "pt"})


def _read_safetensors(model: nn.Module, path: Path) -> Logits:
    loaded = copy.deepcopy(model)
    load_model(loaded, str(path))  # strict: a missing tensor raises
    return loaded


def _write_torchscript(model: nn.Module, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # in favour of torch.export
        traced: Any = torch.jit.trace(model, example, check_trace=False)
        content = io.BytesIO()  # on a full disk torch's own writer of files aborts the process
        torch.jit.save(traced, content)
    path.write_bytes(content.getbuffer())


def _read_torchscript(model: nn.Module, path: Path) -> Logits:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return torch.jit.load(str(path), map_location="cpu")


def _write_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(name) is None:
            raise RattleError(f"onnx export needs {name}, which is not installed: pip install 'rattle-robust[onnx]'")
    images = torch.cat([example, example])  # the exporter would take a batch of one for a constant
    with warnings.catch_warnings(action="ignore"):  # the exporter warns about its own internals
        torch.onnx.export(
            model,
            (images,),
            str(path),
            input_names=["images"],
            output_names=["logits"],
            external_data=False,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            dynamo=True,
            verbose=False,
        )


def _read_onnx(model: nn.Module, path: Path) -> Logits:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


# For each format, write(model, example, path) and read(model, path) -> a function from images to logits.
EXPORT_FORMATS: dict[str, tuple[Callable[..., None], Callable[..., Logits]]] = {
    "safetensors": (_write_safetensors, _read_safetensors),
    "torchscript": (_write_torchscript, _read_torchscript),
    "onnx": (_write_onnx, _read_onnx),
}
