"""A run of a method with state of its own (teachers, memory, averages), killed and resumed, is the run never killed."""

from pathlib import Path

import pytest

from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.training import loop
from rattle.training.loop import fit
from rattle.weights import EMA
from support.training import Wholes, content, dies_at, killed, tiny

pytestmark = pytest.mark.process

TRAINED = {"init": "zoo:digits-linf-cnn-trades", "width": 16}  # sure of its images: they have margins, and stop late
OWN = {"mma": TRAINED, "fat": TRAINED, "rebat": {"average": EMA(decay=0.5, start=0.5)}}  # from the second epoch on


def short(method: str) -> Recipe:
    """Two epochs of three steps; a teacher that comes first has as many. Every step is saved."""
    return tiny(method, save_minutes=0.0, **OWN.get(method, {}))


# The step that kills, counted from the first one of the first teacher.
MOMENTS = {
    "mma": {"in an epoch": 2, "in the next epoch": 5},
    "fat": {"in the next epoch": 5},
    "rebat": {"before its average": 2, "after its average began": 5},
    "dkl": {"in an epoch": 2, "in the next epoch": 5},
    "lbgat": {"in an epoch": 2, "in the next epoch": 5},
    "hat": {"in its teacher": 2, "between teacher and run": 7, "in the run": 11},
    "kd-swa": {"in its first teacher": 2, "in its second teacher": 8, "in the run": 14, "in its average": 17},
    "rslad": {"in its teacher": 2, "in the run": 8},
}
QUICK = ("mma", "in the next epoch")
CASES = [
    pytest.param(method, step, marks=[] if (method, moment) == QUICK else pytest.mark.slow, id=f"{method} {moment}")
    for method, moments in MOMENTS.items()
    for moment, step in moments.items()
]


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Wholes:
    return Wholes(short, tmp_path_factory.mktemp("runs"))


def with_teachers(run: Run) -> list[Run]:
    """The run and those of its teachers."""
    return [run, *map(Run, sorted(run.folder.parent.glob(f"{run.folder.name}-teacher-*")))]


@pytest.mark.parametrize(("method", "step"), CASES)
def test_a_method_with_state_that_was_killed_goes_on_bit_for_bit(
    wholes: Wholes, method: str, step: int, tmp_path: Path
) -> None:
    killed(short(method), tmp_path / method, dies_at((loop, "train_step"), step))
    again = fit(short(method), tmp_path / method, resume=True, log="none")
    one, two = with_teachers(again), with_teachers(wholes[method])
    assert [run.folder.name for run in one] == [run.folder.name for run in two]
    assert list(map(content, one)) == list(map(content, two))
    memory = [
        value for name, value in read_checkpoint(again.checkpoint("last")).tensors.items() if name.startswith("memory.")
    ]
    assert all(float(value.abs().sum()) > 0 for value in memory)  # it had something to lose
