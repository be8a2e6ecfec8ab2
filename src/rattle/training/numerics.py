"""Torch's switches that trade speed for bits, as a recipe has them; restored afterwards."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rattle.errors import RattleError, first_line
from rattle.recipes.recipe import Recipe


@contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Train with deterministic algorithms or in TF32, where the recipe says so (docs/guides/scale.md)."""
    if recipe.precision == "tf32" and device.type != "cuda":
        raise RattleError(f"precision tf32 is for NVIDIA GPUs, this is {device.type}: use fp32")
    if recipe.precision == "bf16":
        refuse_without_bf16(device)
    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first matrix product runs
        torch.use_deterministic_algorithms(True)
    if recipe.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    except RuntimeError as reason:
        if recipe.deterministic and "deterministic" in str(reason):
            raise RattleError(f"--deterministic: {first_line(reason)}") from reason
        raise
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_float32_matmul_precision(before[1])


def refuse_without_bf16(device: torch.device) -> None:
    """Refuse a device whose autocast has no bfloat16: an older GPU, or a kind that torch has no autocast for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # on some kinds torch warns, and computes in float32
            torch.autocast(device.type, torch.bfloat16)
    except (RuntimeError, UserWarning) as reason:
        why = first_line(reason).rstrip(".")
        raise RattleError(f"precision bf16 is not for this device ({device.type}), use fp32: {why}") from reason
