"""Shared by tests of the commands: a small network that knows the digits, saved as a run or as files, in a second."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.data.registry import Data
from rattle.inputs import to_float
from rattle.models.registry import create_model
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs import checkpoint
from rattle.runs.paths import Run

RECIPE = replace(get_recipe("digits-linf-cnn-trades"), width=4, epochs=1, data=Data(name="digits", val_size=20))
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images, uint8, with their labels."""
    data = Data(name="digits").source()
    return data.train.x, data.train.y, data.test.x, data.test.y


def taught(model: nn.Module, *, steps: int = 60) -> nn.Module:
    """The model after a few plain steps: right on most digits, robust to little."""
    x, y, _, _ = digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for i in range(steps):
        rows = torch.arange(128 * i, 128 * (i + 1)) % len(y)
        optimizer.zero_grad()
        F.cross_entropy(model(to_float(x[rows])), y[rows]).backward()
        optimizer.step()
    return model.eval()


@cache
def small_cnn(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return taught(create_model("cnn", classes=10, channels=1, width=4))


@cache
def linear() -> nn.Module:
    torch.manual_seed(0)
    return taught(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def save_run(folder: Path, *, seed: int = 0, recipe: Recipe = RECIPE) -> Path:
    """A run folder as `rattle train` leaves it, as far as evaluation looks at it."""
    run = Run(folder)
    folder.mkdir(parents=True)
    run.recipe.write_text(recipe.to_yaml())
    classes, model = tuple(map(str, range(10))), small_cnn(seed)
    checkpoint.write_checkpoint(
        run.checkpoint("best"), recipe=recipe, classes=classes, shape=(1, 8, 8), progress={}, model=model
    )
    return folder


def save_files(folder: Path, *, n: int = 60) -> None:
    """net.py, w.pt and test.npz: a linear model of the digits as somebody else would have it."""
    (folder / "net.py").write_text(NET)
    torch.save(linear().state_dict(), folder / "w.pt")
    _, _, x, y = digits()
    np.savez(folder / "test.npz", x_test=x[:n].squeeze(1).numpy(), y_test=y[:n].numpy())
