"""rattle doctor: versions, hardware, and a short check that everything works."""

import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from rattle.attacks import PGD
from rattle.cli.options import parse
from rattle.models.registry import create_model
from rattle.runs.environment import environment

EXTRAS = {
    "hub": "datasets",
    "slurm": "submitit",
    "wandb": "wandb",
    "timm": "timm",
    "onnx": "onnx",
    "dev": "pyautoattack",
}


@dataclass(frozen=True)
class Options:
    """Print versions, hardware and extras, and attack a small network to check that everything works."""


def read(args: list[str]) -> Options:
    return parse(Options, args, "doctor")


def bf16_units() -> str:
    """What the processor multiplies bf16 with, by the features that Linux lists."""
    known = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "Arm BF16"}
    with suppress(OSError):
        listed = {*Path("/proc/cpuinfo").read_text(encoding="utf-8").split()}
        return ", ".join(name for flag, name in known.items() if flag in listed) or "no unit of the processor's own"
    return "not known here"


def main(args: list[str]) -> None:
    read(args)
    rows = environment() | {"cuda": "yes" if torch.cuda.is_available() else "no", "cpu bf16": bf16_units()}
    for extra, module in EXTRAS.items():
        rows[extra] = "installed" if find_spec(module) else f"not installed: pip install 'rattle-robust[{extra}]'"
    for name, value in rows.items():
        print(f"{name:<10} {value}")
    x, y = torch.rand(32, 1, 8, 8), torch.arange(32) % 10
    start = time.perf_counter()
    moved = float((PGD(steps=20)(create_model("cnn", classes=10, channels=1), x, y) - x).abs().max())
    print(f"{'attack':<10} works: PGD-20 moved 32 images by {moved:.4f} in {time.perf_counter() - start:.2f} s")
