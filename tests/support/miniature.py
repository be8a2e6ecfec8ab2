"""Small pictures in class folders and tar shards, made by examples/imagenet_miniature.py."""

import io
import runpy
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "imagenet_miniature.py"))
make, picture, add = EXAMPLE["make"], EXAMPLE["picture"], EXAMPLE["add"]


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            add(archive, name, content)
    return path


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()
