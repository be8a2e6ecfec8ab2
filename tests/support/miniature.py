"""Small pictures in class folders, made by examples/imagenet_miniature.py."""

import io
import runpy
from pathlib import Path

import numpy as np
from PIL import Image

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "imagenet_miniature.py"))
make, picture = EXAMPLE["make"], EXAMPLE["picture"]


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()
