"""Checkpoints: one safetensors file each, written atomically and checked when read. Reading executes nothing.

Tensors are named model.*, average.* and optimizer.*, of methods with more state also teachers.*, teacher_optimizer.*
and memory.*; the file's metadata are the format, the recipe, the progress of the run as JSON, and a checksum over all.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from rattle.data.dataset import Names
from rattle.errors import RattleError
from rattle.recipes.reading import parse_json
from rattle.recipes.recipe import Recipe
from rattle.runs.io import atomic_file
from rattle.runs.paths import FORMAT  # `save` writes it, `read` takes older ones too
from rattle.settings import Plain
from rattle.weights import Tensors

DTYPES = {  # as safetensors names them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Damaged(RattleError):
    """The file is not a checkpoint, or its content has changed since it was written."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint file."""

    path: Path
    recipe: Recipe
    classes: Names  # names
    shape: tuple[int, ...]  # [C, H, W] of an image
    progress: Plain  # epoch, step and so on, as training/state.py wrote them
    tensors: Tensors  # on the CPU
    trust_code: bool = False  # the user's word that code which the recipe names as its model may run

    @property
    def step(self) -> int:
        """Optimizer steps that the weights were trained for."""
        return int(self.progress.get("step", 0))

    @property
    def images(self) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
        """What runs must share to be compared on the same images."""
        return self.recipe.data.name, self.shape, self.classes

    def part(self, name: str) -> Tensors:
        """The tensors of `model`, `average` or `optimizer`, without that prefix."""
        return {key[len(name) + 1 :]: value for key, value in self.tensors.items() if key.startswith(f"{name}.")}


def raw(value: Tensor) -> memoryview | bytes:
    """The bytes of a tensor, without a copy if it is contiguous and on the CPU."""
    value = value.detach().cpu().contiguous()
    return value.view(-1).view(torch.uint8).numpy().data if value.numel() else b""


def digest(tensors: Tensors, texts: Mapping[str, str], sums: Mapping[str, int] | None = None) -> str:
    """A checksum over the names, dtypes, shapes and values of tensors, and over texts by name.

    sums: the CRC-32 of each tensor's bytes, to take in place of the bytes themselves.
    """
    total = hashlib.blake2b(digest_size=16)
    for key in sorted(tensors):
        total.update(f"{key} {tensors[key].dtype} {list(tensors[key].shape)}".encode())
        total.update(raw(tensors[key]) if sums is None else sums[key].to_bytes(4, "little"))
    for key in sorted(texts):
        total.update(f"{key}={texts[key]}".encode())
    return total.hexdigest()


def header(tensors: Tensors, texts: Mapping[str, str]) -> bytes:
    """What a safetensors file begins with: its own length, and as JSON the texts and the place of each tensor."""
    entries: Plain = {"__metadata__": dict(texts)}
    end = 0
    for key, value in tensors.items():
        begin, end = end, end + value.nbytes
        entries[key] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_checkpoint(
    path: Path,
    *,
    recipe: Recipe,
    classes: Names,
    shape: tuple[int, ...],
    progress: Plain,
    model: nn.Module,
    average: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    more: Tensors | None = None,
    backup: Path | None = None,
) -> None:
    """Write one checkpoint.

    classes: their names; shape: [C, H, W] of an image; progress: plain data that `read` gives back; average: a model
    of averaged weights (torch.optim.swa_utils.AveragedModel); more: further tensors, under their own names; backup:
    where an earlier file of this name is moved.
    """
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    if average is not None:
        tensors |= {f"average.{key}": value for key, value in average.state_dict().items()}
    if optimizer is not None:
        tensors |= optimizer_tensors("optimizer", optimizer, model)
    tensors |= more or {}
    tensors = {key: tensors[key] for key in sorted(tensors, key=lambda key: (-tensors[key].itemsize, key))}  # aligned
    plain = {"classes": classes, "shape": shape, "progress": progress}
    texts = {"format": str(FORMAT), "recipe": recipe.to_yaml(), **{k: json.dumps(v) for k, v in plain.items()}}
    with atomic_file(path, backup=backup) as file:
        file.write(header(tensors, {**texts, "digest": "0" * 32}))
        sums = {}
        for key, value in tensors.items():  # one after the other: no copy of them all
            content = raw(value)
            file.write(content)
            sums[key] = zlib.crc32(content)
        file.seek(0)
        file.write(header(tensors, {**texts, "digest": digest(tensors, texts, sums)}))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raises RattleError if there is none, Damaged if the file is not one or fails its checksum."""
    if not path.is_file():
        raise RattleError(f"there is no checkpoint {path}")
    try:
        with safe_open(path, framework="pt") as file:
            texts = dict(file.metadata() or {})
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as reason:  # on damaged bytes the readers raise every kind
        raise Damaged(f"{path} is not a checkpoint, or is damaged: {reason}") from reason
    if not texts.get("format", "").isdecimal() or "recipe" not in texts:  # files of other programs say format=pt
        raise Damaged(f"{path} holds weights, but is not a RATTLE checkpoint; give it as --weights with --model")
    if int(texts["format"]) > FORMAT:
        found = f"{path} has checkpoint format {texts['format']}"
        raise RattleError(f"{found}; this version reads up to {FORMAT}: upgrade rattle")
    sums = None if int(texts["format"]) < 3 else {key: zlib.crc32(raw(value)) for key, value in tensors.items()}
    if texts.pop("digest", None) != digest(tensors, texts, sums):
        raise Damaged(f"{path} is damaged: its checksum does not match its content")
    try:
        classes, shape, progress = (parse_json(texts.get(name, "")) for name in ("classes", "shape", "progress"))
        names, sizes = check_images(classes, shape)
        if not isinstance(progress, dict):
            raise RattleError(f"progress must be an object, got {progress!r}")
        return Checkpoint(path, Recipe.from_yaml(texts["recipe"], to_open=True), names, sizes, progress, tensors)
    except RattleError as reason:
        raise Damaged(f"{path} is not a valid checkpoint: {reason}") from reason


def check_images(classes: Any, shape: Any) -> tuple[Names, tuple[int, ...]]:
    """Names of classes and [C, H, W] of an image, as JSON holds them; RattleError if they are something else."""
    named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    sized = isinstance(shape, list) and len(shape) == 3 and all(type(n) is int and 0 < n <= 10_000 for n in shape)
    if not named or not sized:
        raise RattleError("classes must be a list of names, and shape must be channels, height and width")
    return tuple(classes), tuple(shape)


def optimizer_tensors(part: str, optimizer: torch.optim.Optimizer, model: nn.Module) -> Tensors:
    """An optimizer's buffers by part, the name of their parameter, and their own."""
    found = {}
    for name, p in model.named_parameters():
        for buffer, value in optimizer.state[p].items():
            if isinstance(value, Tensor):
                found[f"{part}.{name}.{buffer}"] = value
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Tensors) -> None:
    """Restore an optimizer's buffers from `Checkpoint.part("optimizer")`, in the memory layout of their parameters."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, buffer = key.rpartition(".")
        p = parameters[name]
        like = p if value.shape == p.shape else torch.empty_like(value, device=p.device)  # AdamW counts its steps
        optimizer.state[p][buffer] = torch.empty_like(like).copy_(value)
