"""rattle doctor: versions, hardware, and a short check that everything works."""

import time
from dataclasses import dataclass
from importlib.util import find_spec

from rattle.cli.options import parse

EXTRAS = {
    "hub": "datasets",
    "slurm": "submitit",
    "wandb": "wandb",
    "timm": "timm",
    "lightning": "lightning",
    "onnx": "onnx2torch",
    "mlflow": "mlflow",
    "dev": "pyautoattack",
}


@dataclass(frozen=True)
class Options:
    """Check the installation: print versions, hardware and extras, and attack a small network."""


def main(args: list[str]) -> None:
    parse(Options, args, "doctor")
    import torch

    from rattle.attacks.pgd import PGD
    from rattle.models.registry import create_model
    from rattle.runs.source import environment

    rows = environment() | {"cuda": "yes" if torch.cuda.is_available() else "no"}
    for extra, module in EXTRAS.items():
        rows[extra] = "installed" if find_spec(module) else f"not installed: pip install 'rattle-robust[{extra}]'"
    for name, value in rows.items():
        print(f"{name:<10} {value}")
    x, y = torch.rand(32, 1, 8, 8), torch.arange(32) % 10
    start = time.perf_counter()
    moved = float((PGD(steps=20)(create_model("cnn", classes=10, channels=1), x, y) - x).abs().max())
    print(f"{'attack':<10} works: PGD-20 moved 32 images by {moved:.4f} in {time.perf_counter() - start:.2f} s")
