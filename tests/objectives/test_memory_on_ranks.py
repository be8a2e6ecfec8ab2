"""What a method remembers, and the average it learns from, are the same on two ranks as in one process."""

from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.data import Augment
from rattle.data.registry import Data
from rattle.recipes.catalog import make_recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.training.loop import fit
from rattle.weights import EMA
from support.precision import in_double
from support.processes import together

STATE = {
    "mma": "memory.margin",
    "dkl": "memory.sums",
    "rebat": "average.module.1.weight",
    "free": "memory.delta",
    "e-at": "memory.errors",
}


def train(method: str, folder: Path) -> Run:
    """Two epochs of four steps: an image that one rank saw in the first may be the other's in the second."""
    data = Data(name="memory", val_size=8, augment=Augment(pad=0, flip=False))
    changes = {"average": EMA(decay=0.5, start=0.25)} if method == "rebat" else {}
    recipe = make_recipe(method, data=data, epsilon=0.05, epochs=2, batch_size=10, threads=1, **changes)
    with in_double():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 10))
        nn.init.normal_(model[3].weight, std=8.0)  # sure of its images, so that they have margins
        x = torch.rand(48, 1, 3, 3)
        return fit(recipe, folder, model=model, data=(x, model(x).argmax(1)), log="none")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("method", STATE)
def test_two_ranks_remember_what_one_process_does(method: str, tmp_path: Path) -> None:
    together(lambda: train(method, tmp_path / "two"), tmp_path / "logs")
    one = read_checkpoint(train(method, tmp_path / "one").checkpoint("last")).tensors
    two = read_checkpoint(Run(tmp_path / "two").checkpoint("last")).tensors
    assert one.keys() == two.keys()
    assert float(one[STATE[method]].abs().sum()) > 1
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=1e-5, rtol=0, msg=name)
