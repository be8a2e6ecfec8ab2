"""Datasets in others' files (CIFAR's pickles, MNIST's idx, folders of pictures), damaged."""

import io
import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fuzz import mutate
from fuzz.commands import command
from rattle.data.cifar import CIFAR10
from rattle.data.registry import Data

Files = dict[str, bytes]  # by path under the root


class Evil:
    """Unpickled by Python itself, it touches the canary."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


def pixels(rng: random.Random, *shape: int) -> np.ndarray:
    return np.frombuffer(rng.randbytes(int(np.prod(shape))), np.uint8).reshape(shape)


def cifar_batches(rng: random.Random) -> Files:
    """CIFAR-10's batches; now and then one of them holds something else."""
    files, protocol = {}, rng.choice((2, 2, 3, 4, 5))
    for name in (*CIFAR10.train, CIFAR10.test):
        batch: Any = {b"data": pixels(rng, 4, 3072), CIFAR10.labels.encode(): [rng.randrange(10) for _ in range(4)]}
        how = rng.random()
        if how < 0.05:
            batch[b"data"] = mutate.array(rng, batch[b"data"])
        elif how < 0.1:
            batch = mutate.data(rng, {"data": 3, "labels": [1, 2, 3]})
        elif how < 0.15:
            batch[rng.choice((b"data", b"labels", b"x"))] = Evil()
        elif how < 0.2:
            batch[b"labels"] = mutate.data(rng, [1, 2, 3, 4])
        files[name] = dumped(batch, protocol)
    names: Any = {CIFAR10.names.encode(): [f"class {i}".encode() for i in range(10)]}
    files[CIFAR10.meta] = dumped(
        mutate.data(rng, {"label_names": ["a"] * 10}) if rng.random() < 0.1 else names, protocol
    )
    return files


def dumped(value: Any, protocol: int) -> bytes:
    try:
        return pickle.dumps(value, protocol)
    except Exception:  # what mutation made cannot be pickled
        return b""


def cifar10(rng: random.Random) -> Files:
    return {f"{CIFAR10.folder}/{name}": content for name, content in cifar_batches(rng).items()}


def mnist(rng: random.Random) -> Files:
    files = {}
    for part in ("train", "t10k"):
        for stem, array in (("images-idx3", pixels(rng, 4, 28, 28)), ("labels-idx1", pixels(rng, 4) % 10)):
            shape = list(array.shape)
            if rng.random() < 0.15:
                shape[rng.randrange(len(shape))] = rng.choice((0, 1, 5, 2**31, 2**32 - 1))
            magic = 0x0800 + array.ndim if rng.random() < 0.9 else rng.randrange(2**32)
            raw = struct.pack(f">{1 + len(shape)}I", magic, *shape) + array.tobytes()
            files[f"mnist/{part}-{stem}-ubyte"] = raw
    return files


def folder(rng: random.Random) -> Files:
    """Pictures of several formats, modes and sizes under class folders, some of them no pictures at all."""
    files, odd = {}, rng.random() < 0.7
    for part in rng.choice((("train/", "test/"), ("",), ("train/",))):
        for name in ("a", "b", rng.choice(("c", "\udc80", "é", " ", "x" * 200))):
            for number in range(2):
                size = rng.choice(((8, 8), (1, 1), (9, 8), (8, 4000))) if odd and rng.random() < 0.1 else (8, 8)
                mode = rng.choice(("L", "RGBA", "P", "1", "I;16", "CMYK", "F")) if odd and rng.random() < 0.1 else "RGB"
                kind, suffix = rng.choice(
                    (("PNG", "png"), ("PNG", "png"), ("JPEG", "jpg"), ("GIF", "png"), ("TIFF", "jpeg"))
                )
                file = io.BytesIO()
                try:
                    Image.new(mode, size).save(file, kind)
                except (OSError, ValueError, KeyError):  # not every format holds every mode
                    Image.new("RGB", size).save(file, "PNG")
                content = mutate.content(rng, file.getvalue()) if odd and rng.random() < 0.15 else file.getvalue()
                files[f"pictures/{part}{name}/{number}.{suffix}"] = content
    return files


SOURCES: dict[str, Callable[[random.Random], Files]] = {
    "cifar10": cifar10,
    "mnist": mnist,
    "pictures": folder,
}


def formats(rng: random.Random) -> None:
    """A dataset in files of another's format is loaded, shown or evaluated on."""
    kind = rng.choice(sorted(SOURCES))
    files = SOURCES[kind](rng)
    if rng.random() < 0.5:
        chosen = rng.choice(sorted(files))
        files[chosen] = mutate.content(rng, files[chosen]) if rng.random() < 0.8 else b""
    if rng.random() < 0.1:
        del files[rng.choice(sorted(files))]
    for name, content in files.items():
        path = Path("root") / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:  # a name that this file system does not take
            continue
        if rng.random() < 0.02:
            path.unlink()
            rng.choice((Path.mkdir, os.mkfifo, lambda place: place.symlink_to("/dev/zero")))(path)
    name = "root/pictures" if kind == "pictures" else kind
    if rng.random() < 0.7:
        Data(name=name, root="root", resize=rng.choice((None, None, 8, 1))).load()
    else:
        command(["data", "show", name, "--root", "root"])
