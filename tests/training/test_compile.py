"""--compile: one graph for each pass, no breaks, and nothing compiled again while the run goes on."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from rattle.recipes.recipe import Recipe
from rattle.training import loop
from rattle.training.loop import fit
from rattle.weights import AWP
from support.training import Listening, tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's own, while it compiles


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Graphs compiled until the end of each training step; they run as they are, which needs no C++ compiler."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))
    counted: list[int] = []
    real = loop.train_step

    def counting(*args: object) -> object:
        terms = real(*args)  # type: ignore[arg-type]
        counted.append(counters["stats"]["unique_graphs"])
        return terms

    monkeypatch.setattr(loop, "train_step", counting)
    torch._dynamo.reset()
    counters.clear()
    yield counted
    torch._dynamo.reset()
    counters.clear()


def trained(method: str, folder: Path, **changes: object) -> list[str]:
    """The lines that a compiled run of two epochs logs: six steps, and validation with a batch of another size."""
    console = Listening()
    fit(tiny(method, compile=True, **changes), folder, log="none", console=console)
    return console.lines


@pytest.mark.parametrize(
    ("method", "changes"), [("at", {}), ("trades-2nd", {}), ("trades-awp-2nd", {"awp": AWP(warmup=0)}), ("mart", {})]
)
def test_steps_attacks_and_validation_have_no_graph_break_and_compile_once(
    method: str, changes: dict[str, object], graphs: list[int], tmp_path: Path
) -> None:
    lines = trained(method, tmp_path, **changes)
    assert sum(counters["graph_break"].values()) == 0
    assert len(graphs) == 6
    assert graphs[0] == graphs[2] > 0  # the first epoch's steps
    assert graphs[3] == graphs[5]  # the second's: in between, validation compiled its own batch size
    assert counters["stats"]["unique_graphs"] == graphs[5]
    assert not any("not compiled" in line for line in lines)


def test_a_smaller_last_batch_compiles_once_more(graphs: list[int], tmp_path: Path) -> None:
    recipe = tiny("trades-2nd")
    trained("trades-2nd", tmp_path, data=replace(recipe.data, train_size=150), drop_last=False)
    assert graphs[1] < graphs[2] <= 2 * graphs[1] + 1
    assert graphs[3] == graphs[5]


def in_mode(mode: str) -> Recipe:
    recipe = tiny("trades-2nd")
    return replace(recipe, objective=replace(recipe.objective, taylor=replace(recipe.objective.taylor, mode=mode)))


@pytest.mark.parametrize("mode", ["exact", "sampled"])
def test_passes_along_u_stay_eager_and_the_run_says_so(mode: str, graphs: list[int], tmp_path: Path) -> None:
    lines = trained("trades-2nd", tmp_path, objective=in_mode(mode).objective)
    assert sum(counters["graph_break"].values()) == 0
    assert graphs[3] == graphs[5]
    assert any("passes along u are not compiled" in line for line in lines)
