"""Open a file of weights without running code from it, and find the state dict among what was saved with it."""

import argparse
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from rattle.errors import RattleError
from rattle.weights import Tensors

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights", "last", "best")
DEEPEST_WRAPPER = 8  # wrappers inside each other
AVERAGED = re.compile(r"ema|swa|averag|_wa\b|^wa_", re.IGNORECASE)

# Harmless types that training scripts save with the weights: numbers, and command-line options.
_scalar: Any = np.float64(0).__reduce__()[0]
SAFE_TYPES: list[Any] = [
    argparse.Namespace,
    np.dtype,
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
    *(type(np.dtype(kind)) for kind in (np.float16, np.float32, np.float64, np.int32, np.int64, np.bool_)),
]


def open_weights(path: str | Path) -> Any:
    """The contents of a .pt, .pth or .safetensors file, on the CPU; RattleError if it holds more than plain data."""
    path = Path(path)
    if not path.is_file():
        raise RattleError(f"no file of weights at {path}")
    refuse_compressed(path)
    try:
        if path.suffix == ".safetensors":
            return run_weights(load_file(path, device="cpu"))
        with torch.serialization.safe_globals(SAFE_TYPES):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on untrusted bytes the readers of torch and pickle raise every kind
        found = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if not found:
            raise RattleError(f"{path} is not a file of weights: truncated, or of another kind") from error
        raise RattleError(
            f"{path} holds more than weights (it refers to {found[1]}), so it is not opened: "
            "save model.state_dict() where it was made"
        ) from error


def run_weights(tensors: Tensors) -> Tensors:
    """The weights to use from a checkpoint of our own, the averaged ones if it has them; other tensors unchanged."""
    parts = {key.partition(".")[0] for key in tensors}
    if "model" not in parts or not parts <= {"model", "average", "optimizer"} or parts == {"model"}:
        return tensors
    averaged = int(tensors.get("average.n_averaged", torch.zeros(()))) > 0
    prefix = "average.module." if averaged else "model."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def refuse_compressed(path: Path) -> None:
    """Refuse a decompression bomb: torch.save stores members uncompressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # not a zip archive: torch.load reports what is wrong, if anything
    if size > path.stat().st_size:
        raise RattleError(f"{path} would unpack to {size:,} bytes: torch.save does not compress, so it is not opened")


def unwrap(saved: Any, where: str) -> Tensors:
    """The state dict, tensors under dotted names, in what `open_weights` returned; where: its file, for errors."""
    for _ in range(DEEPEST_WRAPPER):
        if not isinstance(saved, Mapping):
            break
        if any(isinstance(value, Tensor) and "." in str(key) for key, value in saved.items()):
            return _plain_tensors(saved, where)
        holders = [key for key, value in saved.items() if isinstance(value, Mapping)]
        averaged = [key for key in holders if AVERAGED.search(str(key))]
        name = next((key for key in (*WRAPPERS, *averaged) if key in holders), None)
        if name is None:
            break
        saved = saved[name]
    found = ", ".join(map(str, [*saved][:5])) if isinstance(saved, Mapping) else type(saved).__name__
    raise RattleError(f"{where} has no state dict; it holds {found}")


def _plain_tensors(saved: Mapping[Any, Any], where: str) -> Tensors:
    tensors = {}
    for name, value in saved.items():
        if isinstance(value, Tensor) and isinstance(name, str):
            if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_complex():
                raise RattleError(f"{where}: {name} is no dense tensor of weights: {value.layout} {value.dtype}")
            tensors[name] = value
    return tensors
