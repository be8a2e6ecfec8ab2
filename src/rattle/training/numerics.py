"""Torch's switches that trade speed for bits, as a recipe has them; what they were is put back at its end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rattle.errors import RattleError, first_line
from rattle.recipes.recipe import Recipe


@contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Train with deterministic algorithms or in TF32, where the recipe says so (docs/guides/scale.md)."""
    if recipe.tf32 and device.type != "cuda":
        raise RattleError(f"tf32 is for NVIDIA GPUs, this is {device.type}: leave it out")
    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first matrix product runs
        torch.use_deterministic_algorithms(True)
    if recipe.tf32:
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
