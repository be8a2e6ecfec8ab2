"""A run is the same run whatever happens to it: killed, stopped, out of disk, damaged, diverged, started twice."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from processes import Child, until
from rattle import checkpoint, cli, learner, train
from rattle.checkpoint import read
from rattle.console import Silent
from rattle.errors import RattleError
from rattle.recipes import Recipe
from rattle.runs import Run, load
from rattle.schedules import Piecewise
from rattle.signals import Stopped
from rattle.train import fit
from rattle.weights import SWA
from test_train import Interrupting, Stop, content, eventful, tiny

OLD_RUNS = Path(__file__).with_name("old_runs")


def with_ema() -> Recipe:
    recipe = eventful()
    return replace(recipe, attack=replace(recipe.attack, steps=2), val_attack=replace(recipe.val_attack, steps=2))


def with_swa() -> Recipe:
    return replace(with_ema(), average=SWA(start=0.0))


RECIPES = {"EMA": with_ema, "SWA": with_swa}


@pytest.fixture(scope="module", params=["EMA", pytest.param("SWA", marks=pytest.mark.slow)])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was never stopped."""
    return fit(RECIPES[request.param](), tmp_path_factory.mktemp("whole"))


def recipe_of(run: Run) -> Recipe:
    return Recipe.from_yaml(run.recipe.read_text())


class Lines(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)


def dies_at(place: tuple[object, str], count: int, *, after: bool = False) -> Callable[[], None]:
    """Patch a function so that its count-th call is a kill -9 of the process, before or after it has done its work."""

    def patch() -> None:
        module, name = place
        real, calls = getattr(module, name), 0

        def deadly(*args: object, **settings: object) -> object:
            nonlocal calls
            calls += 1
            result = real(*args, **settings) if after or calls < count else None
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(module, name, deadly)

    return patch


def torn_write() -> None:
    """Half a checkpoint is on disk when the process dies."""
    real = checkpoint.serialise

    def half(tensors: dict, texts: dict) -> bytes:
        content, progress = real(tensors, texts), json.loads(texts["progress"])
        if progress["epoch"] == 2:
            Path(place[0]).write_bytes(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return content

    place = []
    writing = checkpoint.save

    def save(path: Path, **settings: object) -> None:
        place[:] = [path.with_name(f".{path.name}.part")]
        writing(path, **settings)

    checkpoint.serialise, checkpoint.save = half, save


def between_renames() -> None:
    """The old checkpoint has its new name, the new one none yet."""
    real = checkpoint.os.replace

    def replace_and_die(old: Path, new: Path) -> None:
        real(old, new)
        if new.name.startswith("previous"):
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.os.replace = replace_and_die


MOMENTS = {
    "in the first step": dies_at((train, "step"), 1),
    "in the middle of an epoch": dies_at((train, "step"), 5),
    "in a validation": dies_at((train, "evaluate"), 2),
    "in the second epoch's validation": dies_at((train, "evaluate"), 4),
    "before a checkpoint is on disk": dies_at((checkpoint.os, "fsync"), 8),
    "in the middle of a checkpoint's bytes": torn_write,
    "between the two renames of a checkpoint": between_renames,
    "between a line and its checkpoint": dies_at((train.Run, "append"), 3, after=True),
    "before the recipe is written": dies_at((checkpoint.os, "replace"), 1),
}


def killed(recipe: Recipe, folder: Path, patch: Callable[[], None], **how: bool) -> None:
    def action() -> None:
        patch()
        fit(recipe, folder, **how)

    child = Child(action, folder.with_suffix(".log"))
    assert child.wait() == -signal.SIGKILL, child.words()


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


class Asking(Silent):
    """Sends this process a signal at some step."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.left = number, step

    def bar(self, title: str, total: int, *, done: int = 0) -> object:
        return Interrupting.bar(self, title, total, done=done)  # type: ignore[arg-type]

    @property
    def losses(self) -> list:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
        return []

    steps = None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("step", [2, 3])
def test_a_signal_saves_within_the_step_and_the_resumed_run_is_the_same(
    whole: Run, tmp_path: Path, number: int, code: int, step: int
) -> None:
    with pytest.raises(Stopped, match=f"stopped by {signal.Signals(number).name}; everything is saved in") as caught:
        fit(recipe_of(whole), tmp_path, console=Asking(number, 2 * step - 1))  # `losses` is asked for twice a step
    assert caught.value.code == code
    assert read(Run(tmp_path).checkpoint("last")).progress["batch"] == step
    assert content(fit(recipe_of(whole), tmp_path, resume=True)) == content(whole)


@pytest.mark.parametrize("judgement", [1, 2])
@pytest.mark.parametrize("average", RECIPES)
def test_a_signal_in_a_validation_breaks_it_off_and_saves_what_precedes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: str, judgement: int
) -> None:
    recipe, real, calls = RECIPES[average](), train.evaluate, []
    uninterrupted = fit(recipe, tmp_path / "whole")

    def asked(*args: object, **settings: object) -> object:
        calls.append(1)
        if len(calls) == judgement:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **settings)

    monkeypatch.setattr(train, "evaluate", asked)
    with pytest.raises(Stopped):
        fit(recipe, tmp_path / "run")
    progress = read(Run(tmp_path / "run").checkpoint("last")).progress
    assert progress["closed"]
    assert progress["epoch"] == 0
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
    assert read(Run(tmp_path / "run").checkpoint("last")).progress["step"] > 0


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    def slow() -> int:
        train.step = lambda *_, **__: [(tmp_path / "stepping").touch(), time.sleep(60)]  # type: ignore[assignment]
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
    assert read(Run(tmp_path).checkpoint("last")).progress["step"] == 4
    assert states(fit(recipe, tmp_path, resume=True)) == states(whole)


def test_checkpoints_by_the_clock_come_once_a_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 10))
    saves: list[int] = []
    monkeypatch.setattr(train.time, "monotonic", lambda: float(next(clock)))  # ten seconds pass at every look
    monkeypatch.setattr(train, "save", lambda learner, *_: saves.append(learner.progress.step))
    fit(tiny("trades", save_minutes=0.75, epochs=1, batch_size=8), tmp_path)
    gaps = {after - before for before, after in pairwise(saves[:-2])}
    assert len(saves) < 12
    assert min(gaps) >= 3  # of 24 steps


def test_what_is_damaged_is_said_in_a_line_and_never_takes_the_place_of_what_is_good(
    whole: Run, tmp_path: Path
) -> None:
    run = Run(tmp_path / "copy")
    shutil.copytree(whole.folder, run.folder)
    previous = run.checkpoint("previous").read_bytes()
    run.checkpoint("last").write_bytes(b"torn")
    killed(recipe_of(whole), run.folder, dies_at((train, "step"), 1), resume=True)
    assert run.checkpoint("last").read_bytes() == previous
    run.checkpoint("previous").write_bytes(previous)
    run.checkpoint("last").write_bytes(b"torn")
    console = Lines()
    assert content(fit(recipe_of(whole), run.folder, resume=True, console=console)) == content(whole)
    [line] = [line for line in console.said if "damaged" in line]
    assert "last.safetensors is not a checkpoint, or is damaged" in line
    assert line.endswith("; trying the checkpoint before it")
    assert "\n" not in line


def test_a_checkpoint_of_a_newer_format_is_refused_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 7)
    fit(tiny("trades", epochs=2), tmp_path)
    monkeypatch.undo()
    with pytest.raises(RattleError, match="has checkpoint format 7; this version reads up to 1: upgrade rattle"):
        fit(tiny("trades", epochs=2), tmp_path, resume=True)


def test_a_run_folder_of_the_first_format_stays_readable_and_goes_on(tmp_path: Path) -> None:
    shutil.copytree(OLD_RUNS / "format1", tmp_path / "run")
    run = Run(tmp_path / "run")
    assert load(run.folder).head.out_features == 10
    fit(recipe_of(run), run.folder, resume=True)
    assert read(run.checkpoint("last")).progress["epoch"] == recipe_of(run).epochs
    assert [json.loads(line)["epoch"] for line in run.metrics.read_text().splitlines()] == [1, 2, 3]


class Filling(Silent):
    """Takes the space away after the first epoch."""

    def __init__(self, fill: Callable[[], object]) -> None:
        self.fill = fill

    def say(self, line: str) -> None:
        self.fill()


def full_disk(folder: Path, fill: Callable[[], object]) -> str:
    """Train until the disk is full; what the command would say."""

    def action() -> int:
        try:
            fit(with_ema(), folder, console=Filling(fill))
        except RattleError as mistake:
            return cli.fail(str(mistake))
        return 0

    child = Child(action, Path(f"{folder}.log"))
    assert child.wait() == 2, child.words()
    return child.words()


def test_a_file_that_may_not_grow_stops_the_run_in_a_sentence_with_its_checkpoints_intact(tmp_path: Path) -> None:
    limit = 2000
    said = full_disk(tmp_path / "run", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert said.splitlines()[-1].endswith("File too large; what was saved earlier is intact")
    check_one_epoch_is_there(tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A megabyte of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_stops_the_run_in_a_sentence_with_its_checkpoints_intact(small_disk: Path) -> None:
    def fill() -> None:
        with open(small_disk / "film", "wb", buffering=0) as file:
            try:
                while file.write(b"0" * 4096):
                    pass
            except OSError:
                pass

    said = full_disk(small_disk / "run", fill)
    (small_disk / "film").unlink()
    assert "No space left on device; what was saved earlier is intact" in said
    assert "Traceback" not in said
    check_one_epoch_is_there(small_disk / "run")


def check_one_epoch_is_there(folder: Path) -> None:
    run = Run(folder)
    assert read(run.checkpoint("last")).progress["epoch"] == 1
    assert not list(folder.rglob("*.part"))
    fit(with_ema(), folder, resume=True)
    assert [json.loads(line)["epoch"] for line in run.metrics.read_text().splitlines()] == [1, 2]


def diverging(monkeypatch: pytest.MonkeyPatch, at: int, times: int) -> None:
    """The loss of a step is not a number, the first few times it is computed."""
    real, seen = train.Ledger.add, []

    def add(self: learner.Ledger, terms: dict[str, torch.Tensor], step: int) -> None:
        if step == at and len(seen) < times:
            seen.append(step)
            terms = {name: value * float("nan") for name, value in terms.items()}
        real(self, terms, step)

    monkeypatch.setattr(train.Ledger, "add", add)


@pytest.mark.parametrize(("at", "back"), [(5, 3), (2, 0)])
def test_rolling_back_goes_on_from_the_last_good_state_with_half_the_rate_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, back: int
) -> None:
    recipe, console = tiny("trades", on_divergence="rollback", schedule=Piecewise(drops=())), Lines()
    diverging(monkeypatch, at, times=2)
    run = fit(recipe, tmp_path, console=console)
    said = [line for line in console.said if "diverged" in line]
    assert [line.partition("): ")[2] for line in said] == [
        f"back to step {back}, learning rate times 0.5",
        f"back to step {back}, learning rate times 0.25",
    ]
    rates = [json.loads(line)["lr"] for line in run.metrics.read_text().splitlines()]
    assert rates == pytest.approx([0.05 if back else 0.0125, 0.0125])
    assert read(run.checkpoint("last")).progress["rate"] == 0.25


def test_rolling_back_without_end_is_given_up_with_the_best_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverging(monkeypatch, 5, times=100)
    with pytest.raises(RattleError, match=r"the loss diverged at step 5 .*the last good checkpoint is"):
        fit(tiny("trades", on_divergence="rollback"), tmp_path)
    assert read(Run(tmp_path).checkpoint("best")).progress["epoch"] == 1


def test_weights_that_overflowed_are_not_saved_midway_either(tmp_path: Path) -> None:
    steep = Piecewise(drops=(0.5,), factor=1e30)
    with pytest.raises(RattleError, match=r"the loss diverged at step [45] "):
        fit(tiny("trades", schedule=steep, save_minutes=0), tmp_path)
    for name in ("last", "previous"):
        assert all(v.isfinite().all() for v in read(Run(tmp_path).checkpoint(name)).tensors.values())


def test_a_second_writer_is_refused_with_owner_and_age_and_a_dead_one_s_lock_taken_over(tmp_path: Path) -> None:
    folder, inside = tmp_path / "run", tmp_path / "inside"

    def hold() -> None:
        with Run(folder).opened(tiny()):
            inside.touch()
            time.sleep(60)

    child = Child(hold, tmp_path / "log")
    until(inside.exists)
    for how in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(RattleError, match=rf"is being written by process {child.pid} on .* \(for 0 minutes\)"):
            fit(tiny(epochs=1), folder, **how)
    child.send(signal.SIGKILL)
    child.wait()
    assert "process" in (folder / "lock").read_text()  # stale
    fit(tiny(), folder, resume=True)
