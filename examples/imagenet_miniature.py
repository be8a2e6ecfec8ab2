"""Make a miniature of ImageNet: 64 classes of small JPEG pictures of different sizes, in class folders.

    python examples/imagenet_miniature.py mini                      # mini/train/CLASS/*.jpg, mini/val/CLASS/*.jpg
    rattle train imagenet-linf-cnn-slim-trades --data.name mini --data.crop 32 --data.augment.area 0.5 \\
        --batch-size 64 --epochs 4 --out runs/mini

A class is a pair of colours, one of the ground and one of the discs on it: a small network learns that in a few epochs,
whatever part of the picture it is shown, and unlearns it under a perturbation. Everything follows from the seed.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = np.array(
    [[a, b, c] for a in (70, 190) for b in (70, 190) for c in (70, 190)]
)  # eight, far apart; with each other 64 classes
CLASSES = len(COLOURS) ** 2


def picture(label: int, seed: tuple[int, ...], side: int) -> bytes:
    """One JPEG file; label: its class. seed: what discs, noise and size follow from. side: of the shortest pictures."""
    rng = np.random.default_rng([label, *seed])
    height, width = rng.integers(side, side + side // 2 + 1, 2)
    row, column = np.mgrid[:height, :width]
    inside = np.zeros((height, width), bool)
    for y, x, radius in rng.random((12, 3)) * (height, width, side / 6) + (0, 0, side / 12):
        inside |= (row - y) ** 2 + (column - x) ** 2 < radius**2
    ground, disc = COLOURS[[label // len(COLOURS), label % len(COLOURS)]]
    pixels = np.where(inside[..., None], disc, ground) + rng.normal(0, 20, (height, width, 3))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def make(folder: Path, *, train: int = 20, val: int = 5, side: int = 48, classes: int = CLASSES) -> None:
    """Write the miniature. train, val: pictures of each class."""
    for part, count in (("train", train), ("val", val)):
        for label in range(classes):
            path = folder / part / f"class-{label:02d}"
            path.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                (path / f"{i:05d}.jpg").write_bytes(picture(label, (part == "val", i), side))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=20, help="training pictures of each class (20)")
    parser.add_argument("--val", type=int, default=5, help="test pictures of each class (5)")
    parser.add_argument("--side", type=int, default=48, help="pixels of the shortest side (48)")
    args = parser.parse_args()
    make(args.folder, train=args.train, val=args.val, side=args.side)


if __name__ == "__main__":
    main()
