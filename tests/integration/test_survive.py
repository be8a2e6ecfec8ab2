"""A run is the same run whatever happens to it: killed, stopped, out of disk, damaged, diverged, started twice."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rattle.cli import main as cli
from rattle.recipes.recipe import Recipe
from rattle.runs import checkpoint, io
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.runs.progress import NullConsole, StoppedBySignal
from rattle.training import loop as train
from rattle.training.loop import fit
from rattle.weights import SWA
from support.processes import Child, until
from support.training import Interrupting, Stop, content, dies_at, eventful, killed, recipe_of

pytestmark = pytest.mark.process


def with_swa() -> Recipe:
    return replace(eventful(), average=SWA(start=0.0))


RECIPES = {"EMA": eventful, "SWA": with_swa}


@pytest.fixture(scope="module", params=["EMA", pytest.param("SWA", marks=pytest.mark.slow)])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was never stopped."""
    return fit(RECIPES[request.param](), tmp_path_factory.mktemp("whole"))


def torn_write() -> None:
    """Half a checkpoint is on disk when the process dies."""
    real, epoch = checkpoint.raw, 0
    writing = checkpoint.write_checkpoint

    def half(value: torch.Tensor) -> memoryview | bytes:
        content = real(value)
        if epoch == 2 and place[0].exists() and value.numel() > 1:
            with open(place[0], "ab") as part:
                part.write(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return content

    place = []

    def save(path: Path, **settings: object) -> None:
        nonlocal epoch
        epoch = settings["progress"]["epoch"]
        place[:] = [path.with_name(f".{path.name}.part")]
        writing(path, **settings)

    checkpoint.raw, checkpoint.write_checkpoint = half, save


def between_renames() -> None:
    """The old checkpoint has its new name, the new one none yet."""
    real = io.os.replace

    def replace_and_die(old: Path, new: Path) -> None:
        real(old, new)
        if new.name.startswith("previous"):
            os.kill(os.getpid(), signal.SIGKILL)

    io.os.replace = replace_and_die


MOMENTS = {
    "in the first step": dies_at((train, "train_step"), 1),
    "in the middle of an epoch": dies_at((train, "train_step"), 5),
    "in a validation": dies_at((train, "validate"), 2),
    "in the second epoch's validation": dies_at((train, "validate"), 4),
    "before a checkpoint is on disk": dies_at((io.os, "fsync"), 8),
    "in the middle of a checkpoint's bytes": torn_write,
    "between the two renames of a checkpoint": between_renames,
    "between a line and its checkpoint": dies_at((train, "record_line"), 3, after=True),
    "before the recipe is written": dies_at((io.os, "replace"), 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_killed_at_a_bad_moment_goes_on_as_if_nothing_had_happened(
    whole: Run, tmp_path: Path, moment: str
) -> None:
    killed(recipe_of(whole), tmp_path / "run", MOMENTS[moment])
    assert content(fit(recipe_of(whole), tmp_path / "run", resume=True)) == content(whole)


def kill_at_random(recipe: Recipe, folder: Path, moments: random.Random, times: int, seconds: float) -> int:
    """Start, kill, resume, until it was killed so many times; the number of kills that met a living process."""
    kills = 0
    for _ in range(times):
        child = Child(lambda: fit(recipe, folder, resume=True) and 0, folder.with_suffix(".log"))
        time.sleep(moments.uniform(0, seconds))
        child.send(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        if (folder / "checkpoints" / "last.safetensors").exists() and moments.random() < 0.3:
            shutil.rmtree(folder)  # from the beginning again, or it would soon be finished
    return kills


@pytest.mark.parametrize("times", [pytest.param(3, id="three"), pytest.param(20, id="twenty", marks=pytest.mark.slow)])
def test_a_run_killed_again_and_again_at_random_moments_is_the_same_run(whole: Run, tmp_path: Path, times: int) -> None:
    begun = time.monotonic()
    fit(recipe_of(whole), tmp_path / "timed")
    moments = random.Random(times)
    kills = kill_at_random(recipe_of(whole), tmp_path / "run", moments, times, time.monotonic() - begun)
    assert kills >= times // 2
    assert content(fit(recipe_of(whole), tmp_path / "run", resume=True)) == content(whole)


class Asking(NullConsole):
    """Sends this process a signal at some step."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.left = number, step

    def progress(self, title: str, total: int, *, done: int = 0) -> object:
        return Interrupting.progress(self, title, total, done=done)  # type: ignore[arg-type]

    @property
    def losses(self) -> list:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
        return []

    steps = None


@pytest.mark.parametrize(("number", "code", "step"), [(signal.SIGTERM, 143, 3), (signal.SIGINT, 130, 2)])
def test_a_signal_saves_within_the_step_and_the_resumed_run_is_the_same(
    whole: Run, tmp_path: Path, number: int, code: int, step: int
) -> None:
    with pytest.raises(
        StoppedBySignal, match=f"stopped by {signal.Signals(number).name}; everything is saved in"
    ) as caught:
        fit(recipe_of(whole), tmp_path, console=Asking(number, 2 * step - 1))  # `losses` is asked for twice a step
    assert caught.value.code == code
    assert read_checkpoint(Run(tmp_path).checkpoint("last")).progress["batch"] == step
    assert content(fit(recipe_of(whole), tmp_path, resume=True)) == content(whole)


@pytest.mark.parametrize(("average", "judgement"), [("EMA", 1), ("SWA", 2)])
def test_a_signal_in_a_validation_stops_the_run_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: str, judgement: int
) -> None:
    recipe, real, calls = RECIPES[average](), train.validate, []
    uninterrupted = fit(recipe, tmp_path / "whole")

    def asked(*args: object, **settings: object) -> object:
        calls.append(1)
        if len(calls) == judgement:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **settings)

    monkeypatch.setattr(train, "validate", asked)
    with pytest.raises(StoppedBySignal):
        fit(recipe, tmp_path / "run")
    assert content(fit(recipe, tmp_path / "run", resume=True)) == content(uninterrupted)


def training(folder: Path, *more: str) -> list[str]:
    sizes = ["--width", "4", "--data.train-size", "256", "--batch-size", "64", "--attack.steps", "2"]
    return ["train", "digits-linf-cnn-trades-2nd", "--out", str(folder), "--threads", "1", *sizes, *more]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_command_saves_and_exits_with_the_code_of_the_signal_within_seconds(
    tmp_path: Path, number: int, code: int
) -> None:
    child = Child(lambda: cli.main(training(tmp_path / "run", "--epochs", "1000")), tmp_path / "log")
    until((tmp_path / "run" / "metrics.jsonl").exists)
    begun = time.monotonic()
    child.send(number)
    assert child.wait() == code
    assert time.monotonic() - begun < 5
    assert f"rattle: stopped by {signal.Signals(number).name}; everything is saved in" in child.words()
    assert read_checkpoint(Run(tmp_path / "run").checkpoint("last")).progress["step"] > 0


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    def slow() -> int:
        train.train_step = lambda *_: [(tmp_path / "stepping").touch(), time.sleep(60)]  # type: ignore[assignment]
        return cli.main(training(tmp_path / "run"))

    child = Child(slow, tmp_path / "log")
    until((tmp_path / "stepping").exists)
    child.send(signal.SIGINT)
    time.sleep(0.3)
    assert os.waitpid(child.pid, os.WNOHANG) == (0, 0)  # the first lets the step finish
    child.send(signal.SIGINT)
    assert child.wait(5) == 130


def states(run: Run) -> tuple[bytes, object]:
    return run.metrics.read_bytes(), content(run)["last"]


def test_checkpoints_written_by_the_clock_do_not_change_the_result(whole: Run, tmp_path: Path) -> None:
    recipe = replace(recipe_of(whole), save_minutes=0)
    with pytest.raises(Stop):
        fit(recipe, tmp_path, console=Interrupting(steps=5))
    assert read_checkpoint(Run(tmp_path).checkpoint("last")).progress["step"] == 4
    assert states(fit(recipe, tmp_path, resume=True)) == states(whole)
