"""A run made longer: what was trained stays, the schedule stretches, and an interruption changes nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rattle.recipes.schedules import OneCycle
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.training.loop import fit
from rattle.weights import SWA
from support.training import Interrupting, Stop, content, eventful, tiny


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of two epochs."""
    return fit(eventful(), tmp_path_factory.mktemp("short"))


@pytest.fixture(scope="module")
def extended(short: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same, made four epochs long without an interruption."""
    folder = tmp_path_factory.mktemp("extended") / "run"
    shutil.copytree(short.folder, folder)
    return fit(eventful(epochs=4), folder, resume=True)


def test_the_epochs_that_were_trained_stay_and_the_others_follow(short: Run, extended: Run) -> None:
    assert extended.metrics.read_text().startswith(short.metrics.read_text())
    lines = [json.loads(line) for line in extended.metrics.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert [line["lr"] for line in lines[2:]] == pytest.approx([0.05 * OneCycle()(step / 12) for step in (8, 11)])
    assert read_checkpoint(extended.checkpoint("last")).recipe.epochs == 4


@pytest.mark.parametrize("stop", [{"epochs": 2}, {"steps": 4}])
def test_an_extension_that_was_stopped_goes_on_as_if_it_had_not_been(
    short: Run, extended: Run, tmp_path: Path, stop: dict[str, int]
) -> None:
    shutil.copytree(short.folder, tmp_path / "run")
    with pytest.raises(Stop):
        fit(eventful(epochs=4), tmp_path / "run", resume=True, console=Interrupting(**stop))
    assert content(fit(eventful(epochs=4), tmp_path / "run", resume=True)) == content(extended)


def test_an_average_of_epochs_that_has_begun_goes_on_though_its_start_moves(tmp_path: Path) -> None:
    recipe = tiny(average=SWA(start=0.5))
    fit(recipe, tmp_path)
    run = fit(replace(recipe, epochs=5), tmp_path, resume=True)
    assert int(read_checkpoint(run.checkpoint("last")).tensors["average.n_averaged"]) == 4  # after epochs 2, 3, 4 and 5
