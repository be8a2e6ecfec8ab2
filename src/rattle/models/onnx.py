"""A network from an ONNX file, converted by onnx2torch and held against onnxruntime before anything is measured."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rattle.errors import RattleError, first_line
from rattle.models.export import EXPORT_TOLERANCE

NEEDED = ("onnx", "onnxruntime", "onnx2torch")
OPSET = 17  # the newest that onnx2torch has converters for


def read_onnx(path: str | Path, x: Tensor, front: nn.Module | None = None) -> nn.Module:
    """The network of a file as a module in evaluation mode, which has gradients; refused where its logits differ.

    x: images [n, C, H, W] in [0, 1] to compare on. front: what images pass first, such as a Normalise layer.
    """
    packages = {}
    for name in NEEDED:
        try:
            packages[name] = importlib.import_module(name)
        except Exception as error:  # not installed, or a torchvision made for another torch
            advice = "pip install 'rattle-robust[onnx]'"
            raise RattleError(f"{path} needs {name}, which could not be imported ({error}): {advice}") from error
    onnx, onnxruntime, onnx2torch = packages.values()
    front = front or nn.Identity()
    with torch.no_grad():
        images = front(x)
    wanted = reference_logits(onnxruntime, path, images)
    try:
        with warnings.catch_warnings(action="ignore"):
            model = onnx2torch.convert(lowered(onnx, path)).eval()
    except Exception as error:
        raise RattleError(
            f"{path}: onnx2torch does not convert it ({first_line(error)}): export it with opset {OPSET} or lower, or "
            "give the network as --model FILE.py:build --weights w.pt"
        ) from error
    try:
        with torch.no_grad():
            found = model(images)
    except Exception as error:
        raise RattleError(
            f"{path} does not run on a batch of {len(x)} images ({first_line(error)}): export it with a free number of "
            "images (dynamic_shapes, or dynamic_axes)"
        ) from error
    difference = float((found - wanted).abs().max()) if found.shape == wanted.shape else float("inf")
    allowed = EXPORT_TOLERANCE * max(1.0, float(wanted.abs().max()))
    if not difference <= allowed:  # also true for NaN
        raise RattleError(
            f"{path}: the converted network's logits differ from onnxruntime's by {difference:.3g} on {len(x)} images "
            f"(allowed {allowed:.3g}), so it is refused: give the network as --model FILE.py:build --weights w.pt"
        )
    return nn.Sequential(front, model).eval()


def reference_logits(onnxruntime: Any, path: str | Path, x: Tensor) -> Tensor:
    """What onnxruntime computes for each image on its own; a file made for batches of one size gets it repeated."""
    if not Path(path).is_file():
        raise RattleError(f"there is no file {path}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    logits = []
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        images = session.get_inputs()[0]
        batch = images.shape[0] if isinstance(images.shape[0], int) else 1
        for image in x.cpu():
            same = image.expand(batch, *image.shape).contiguous().numpy()
            logits.append(torch.from_numpy(session.run(None, {images.name: same})[0])[:1])
    except Exception as error:  # a file that is none, another size or number of channels, another input
        shape = list(x.shape[1:])
        raise RattleError(
            f"onnxruntime does not run {path} on an image {shape} in float32: {first_line(error)}"
        ) from error
    return torch.cat(logits)


def lowered(onnx: Any, path: str | Path) -> Any:
    """The graph in a version that onnx2torch knows, where there is one."""
    model = onnx.load(str(path))
    if any(each.domain == "" and each.version > OPSET for each in model.opset_import):
        model = onnx.version_converter.convert_version(model, OPSET)
    for node in model.graph.node:
        if node.op_type == "Reshape":  # `allowzero`, which torch writes always, matters to shapes with a 0 alone
            kept = [each for each in node.attribute if each.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(kept)
    return model
