"""Opening a file of weights: never runs code from it, and finds the state dict inside what was saved around it."""

from __future__ import annotations

import argparse
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rattle.errors import RattleError

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights", "last", "best")
AVERAGED = re.compile(r"ema|swa|averag|_wa\b|^wa_", re.IGNORECASE)

# Plain data that training scripts save beside the weights: numbers, and the command line's options.
_scalar: Any = np.float64(0).__reduce__()[0]
PLAIN: list[Any] = [
    argparse.Namespace,
    np.dtype,
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
    *(type(np.dtype(kind)) for kind in (np.float16, np.float32, np.float64, np.int32, np.int64, np.bool_)),
]


def open_weights(path: str | Path) -> Any:
    """The contents of the file, on the CPU; only tensors and plain data, or a RattleError."""
    path = Path(path)
    if not path.is_file():
        raise RattleError(f"no file of weights at {path}")
    refuse_compressed(path)
    try:
        if path.suffix == ".safetensors":
            return run_weights(load_file(path, device="cpu"))
        with torch.serialization.safe_globals(PLAIN):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        if not found:
            raise RattleError(f"{path} is not a file of weights: truncated, or of another kind") from error
        raise RattleError(
            f"{path} holds more than weights (it refers to {found[1]}), so it is not opened: "
            "save model.state_dict() where it was made"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        raise RattleError(f"{path} is not a file of weights: truncated, or of another kind") from error


def run_weights(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Of a checkpoint of ours the weights that count, averaged ones first; anything else as it is."""
    parts = {key.partition(".")[0] for key in tensors}
    if "model" not in parts or not parts <= {"model", "average", "optimizer"} or parts == {"model"}:
        return tensors
    averaged = int(tensors.get("average.n_averaged", torch.zeros(()))) > 0
    prefix = "average.module." if averaged else "model."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def refuse_compressed(path: Path) -> None:
    """torch stores tensors as they are; a member that unpacks to more than is there is somebody's bomb."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError):
        return  # no archive: torch says the rest
    if size > path.stat().st_size:
        raise RattleError(f"{path} would unpack to {size:,} bytes: torch.save does not compress, so it is not opened")


def unwrap(saved: Any, where: str, entry: str | None = None) -> tuple[str, dict[str, Tensor]]:
    """The name of the entry that holds the state dict (empty when there is none around it), and the state dict."""
    route: list[str] = []
    while not _is_state_dict(saved):
        holders = [k for k, v in saved.items() if isinstance(v, Mapping)] if isinstance(saved, Mapping) else []
        name = _choose(holders, entry if not route else None)
        if name is None:
            held = f" (it holds {', '.join(map(str, list(saved)[:5]))})" if isinstance(saved, Mapping) else ""
            wanted = f"no entry {entry!r}" if entry else "no state dict"
            raise RattleError(f"{where} has {wanted}{held}")
        route.append(str(name))
        saved = saved[name]
    if entry and not route:
        raise RattleError(f"{where} has no entry {entry!r}: it is a bare state dict")
    return ".".join(route), {k: v for k, v in saved.items() if isinstance(v, Tensor)}


def _choose(holders: list[Any], entry: str | None) -> Any:
    if entry:
        return entry if entry in holders else None
    plain = [name for name in WRAPPERS if name in holders]
    averaged = [name for name in holders if isinstance(name, str) and AVERAGED.search(name)]
    return next(iter(plain + averaged), None)


def _is_state_dict(saved: Any) -> bool:
    """Names with dots, tensors behind them: more than a loose tensor beside the weights."""
    if not isinstance(saved, Mapping) or not saved:
        return False
    return any(isinstance(k, str) and "." in k and isinstance(v, Tensor) for k, v in saved.items())
