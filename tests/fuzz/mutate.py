"""Seeded mutation of plain data, arrays, tensors, text and bytes: what a careless or hostile hand leaves in a file."""

import copy
import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

NESTED: list[Any] = []
for _ in range(60):
    NESTED = [NESTED]
ODD: list[Any] = [None, True, False, -1, 0, 1, 3, 2**31, 2**63, 10**30, 0.5, -0.5, 1e30, 1e-30, -1e308]
ODD += [float("inf"), float("-inf"), float("nan"), "", "x", "8/255", "1/0", "nan", "-inf", "\x1b]0;x\x07", "a\nb", "\0"]
ODD += ["\ud800", "é", "../../etc/passwd", "evil.py:build", "package.module:build", "os:abort", "python:Net", "timm:x"]
ODD += ["memory:0", "zoo:none", "cnn", "wrn34-10", "wrn7-1", "wrn99999-1", "cuda:7", "meta", "relu", [], [0.5], [[]]]
ODD += [["a"], [None, 1], {}, {"kind": "PGD"}, {"kind": None}, {"": {}}, {"a": {"a": {"a": 1}}}, NESTED]
TEXT = [
    *" \n\t:{}[]'\"#|>~\0é\ufeff\u2028\x85",
    "- ",
    "&a ",
    "*a",
    "!!int ",
    "!!binary ",
    "<<: ",
    "null",
    "1e999",
    "0x",
]
TEXT += ["%YAML 9.9\n", "---\n", "...\n", "2020-13-01"]


def places(plain: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in plain data."""
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    return [at, *(place for key, value in list(inner)[:40] for place in places(value, (*at, key)))]


def data(rng: random.Random, plain: Any) -> Any:
    """Plain data with one value, rarely two, replaced, removed, renamed or repeated."""
    plain = copy.deepcopy(plain)
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.choice(places(plain))
        if not at:
            plain = rng.choice(ODD) if rng.random() < 0.1 else plain
            continue
        holder = plain
        for key in at[:-1]:
            holder = holder[key]
        how = rng.random()
        if how < 0.7:
            holder[at[-1]] = copy.deepcopy(rng.choice(ODD))
        elif how < 0.85:
            del holder[at[-1]]
        elif isinstance(holder, dict):
            holder[str(rng.choice(ODD))[:50]] = holder[at[-1]]
        else:
            holder.append(copy.deepcopy(rng.choice(ODD)))
    return plain


def text(rng: random.Random, given: str) -> str:
    """Text with a few pieces put in, cut out or repeated."""
    for _ in range(rng.choice((1, 2, 4))):
        a, b = sorted((rng.randrange(len(given) + 1), rng.randrange(len(given) + 1)))
        b = min(b, a + 200)
        how = rng.random()
        piece = rng.choice(TEXT) if how < 0.6 else given[a:b] * rng.choice((2, 3)) if how < 0.8 else ""
        given = given[:a] + piece + given[a if how < 0.6 else b :]
    return given


def content(rng: random.Random, given: bytes) -> bytes:
    """Bytes cut, flipped or put in."""
    found = bytearray(given)
    how = rng.random()
    if how < 0.25:
        return bytes(found[: rng.randrange(len(found) + 1)])
    if how < 0.3:
        return rng.randbytes(rng.choice((0, 1, 8, 1000)))
    for _ in range(rng.choice((1, 3, 30))):
        found[rng.randrange(min(len(found), rng.choice((64, 512, 10**9))))] = rng.randrange(256)
    return bytes(found)


def array(rng: random.Random, given: np.ndarray) -> np.ndarray:
    """An array of another dtype, shape or content; a few may be Python objects, which only a pickle could hold."""
    how = rng.randrange(9)
    if given.dtype.kind == "U" and how in (0, 7):
        return given.astype("S")
    if given.ndim == 0 and how in (3, 6):
        return given[None]
    if how == 0:
        return given.astype(rng.choice(["f4", "f8", "f2", "i1", "i8", "u8", "?", "c8", "S3", "U3", "M8[s]"]), copy=True)
    if how == 1:
        return given.reshape(-1)
    if how == 2:
        return given[..., None]
    if how == 3:
        return given[: rng.choice((0, 1, len(given) // 2))] if given.ndim else given
    if how == 4:
        return np.array(rng.choice(ODD[:18]), dtype=rng.choice([None, "f8", object]))
    if how == 5 and given.size:
        changed = given.copy()
        with np.errstate(all="ignore"):
            value = rng.choice((-1, 255, 10**7, 2**40, float("nan"), float("inf")))
            kind = np.asarray(value).astype(changed.dtype) if changed.dtype.kind in "fiub" else changed.flat[0]
            changed.flat[rng.randrange(changed.size)] = kind
        return changed
    if how == 6:
        return np.asfortranarray(given) if given.ndim > 1 else given[::-1]
    if how == 7:
        return given.astype(">i8") if given.dtype.kind in "iub" else given
    return given.astype("i8") * 10**7 if given.dtype.kind in "iub" else -given if given.dtype.kind == "f" else given


def archive(rng: random.Random, arrays: dict[str, np.ndarray], path: Path) -> None:
    """An .npz file of which one array, member or stretch of bytes is not as it should be."""
    arrays, name = dict(arrays), rng.choice(sorted(arrays))
    how = rng.random()
    if how < 0.6:
        arrays[name] = array(rng, arrays[name])
    elif how < 0.7:
        del arrays[name]
    elif how < 0.75:
        arrays[rng.choice(("classes", "x", "y", "../x", "a/b"))] = arrays[name]
    np.savez(path, **arrays)  # type: ignore[arg-type]
    if how < 0.75:
        return
    if how < 0.9:
        path.write_bytes(content(rng, path.read_bytes()))
        return
    with zipfile.ZipFile(path) as file:
        members = {member: file.read(member) for member in file.namelist()}
    chosen = rng.choice(sorted(members))
    members[chosen] = content(rng, members[chosen])
    with zipfile.ZipFile(path, "w") as file:
        for member, stored in members.items():
            file.writestr(member if rng.random() < 0.8 else member.removesuffix(".npy"), stored)


def tensor(rng: random.Random, given: torch.Tensor) -> Any:
    """A tensor of another dtype, shape, content or kind; or no tensor."""
    how = rng.randrange(12)
    if how == 0:
        return given.to(
            rng.choice([torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
        )
    if how == 1:
        return given[None]
    if how == 2:
        return given.reshape(-1)[: rng.choice((0, 1, 3))]
    if how == 3:
        return torch.full_like(given.float(), rng.choice((float("nan"), float("inf"), 1e38, 0.0)))
    if how == 4:
        return given.float().reshape(-1).to_sparse()
    if how == 5:
        return torch.quantize_per_tensor(given.float(), 0.1, 0, torch.qint8)
    if how == 6:
        return given.to("meta")
    if how == 7:
        return torch.zeros(1).expand(2**20, 2**10)
    if how == 8:
        return torch.nn.Parameter(given.float())
    if how == 9:
        return given.T if given.ndim == 2 else given.clone()
    return rng.choice([None, 3, "x", [given], {"a": given}, torch.Size([2]), b"x"]) if how == 10 else torch.empty(0)


def state_dict(rng: random.Random, given: dict[str, torch.Tensor]) -> Any:
    """What somebody saved in place of a state dict."""
    found: dict[Any, Any] = dict(given)
    name = rng.choice(sorted(given))
    how = rng.randrange(8)
    if how < 3:
        found[name] = tensor(rng, given[name])
    elif how == 3:
        del found[name]
    elif how == 4:
        found[rng.choice([3, "", "a.b", "module." + name, None, (1, 2)])] = found[name]
    elif how == 5:
        found = {rng.choice(["state_dict", "model", "ema", "x", 3, "best"]): found}
        if rng.random() < 0.5:
            found["state_dict"] = found  # a circle
    elif how == 6:
        found = {key: tensor(rng, value) for key, value in given.items()}
    else:
        return rng.choice([[], {}, None, 3, "x", given[name], [given], {"model": {"model": {}}}])
    return found


def as_json(rng: random.Random, plain: Any) -> str:
    """JSON of mutated data, or mutated JSON."""
    return json.dumps(data(rng, plain)) if rng.random() < 0.7 else text(rng, json.dumps(plain))


def saved(value: Any) -> bytes:
    """The bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()
