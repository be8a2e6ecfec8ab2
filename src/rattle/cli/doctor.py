"""rattle doctor: versions, hardware, and a short check that everything works."""

import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import tyro

from rattle.cli.console import say
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
    """Check the installation: print versions, hardware and extras, and attack a small network. With --device, check in
    a few minutes that a device computes what the CPU does, and how fast; paste the report into an issue."""

    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = ""  # cuda, mps, cpu or auto


def main(args: list[str]) -> None:
    options = parse(Options, args, "doctor")
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
    if options.device:
        print_installation(options.device)


def print_installation(chosen: str) -> None:
    """Print the checks of a device as Markdown; exits with code 1 if one fails."""
    from rattle.cli.device import findings
    from rattle.runs.distributed import choose_device
    from rattle.training.metrics import device_name

    device, failed = choose_device(chosen), False
    say(f"\n| {device_name(device)} | | |\n|---|---|---|")
    for name, found in findings(device):
        failed = failed or found.passed is False
        verdict = {True: "ok", False: "FAILED", None: ""}[found.passed]
        say(f"| {name} | {verdict} | {found.detail} |")
    if failed:
        sys.exit(1)
