"""Damage, full disks, divergence and two writers end in a sentence, with what was saved intact."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rattle.cli.main import fail, main
from rattle.errors import RattleError
from rattle.recipes.schedules import Piecewise
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.load import load
from rattle.runs.lock import open_run
from rattle.runs.paths import Run
from rattle.runs.progress import NullConsole
from rattle.training import loop as train
from rattle.training.loop import fit
from support.processes import Child, until
from support.training import content, dies_at, eventful, killed, recipe_of, tiny

pytestmark = pytest.mark.process
OLD_RUNS = Path(__file__).with_name("old_runs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was never stopped."""
    return fit(eventful(), tmp_path_factory.mktemp("whole"))


class Lines(NullConsole):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, line: str) -> None:
        self.said.append(line)


def test_what_is_damaged_is_said_in_a_line_and_never_takes_the_place_of_what_is_good(
    whole: Run, tmp_path: Path
) -> None:
    run = Run(tmp_path / "copy")
    shutil.copytree(whole.folder, run.folder)
    previous = run.checkpoint("previous").read_bytes()
    run.checkpoint("last").write_bytes(b"torn")
    killed(recipe_of(whole), run.folder, dies_at((train, "train_step"), 1), resume=True)
    assert run.checkpoint("last").read_bytes() == previous
    run.checkpoint("previous").write_bytes(previous)
    run.checkpoint("last").write_bytes(b"torn")
    console = Lines()
    assert content(fit(recipe_of(whole), run.folder, resume=True, console=console)) == content(whole)
    [line] = [line for line in console.said if "damaged" in line]
    assert "last.safetensors is not a checkpoint, or is damaged" in line
    assert line.endswith("; trying the checkpoint before it")
    assert "\n" not in line


def test_a_run_folder_of_the_first_format_stays_readable_and_goes_on(tmp_path: Path) -> None:
    shutil.copytree(OLD_RUNS / "format1", tmp_path / "run")
    run = Run(tmp_path / "run")
    assert load(run.folder).head.out_features == 10
    fit(recipe_of(run), run.folder, resume=True)
    assert read_checkpoint(run.checkpoint("last")).progress["epoch"] == recipe_of(run).epochs
    assert [json.loads(line)["epoch"] for line in run.metrics.read_text().splitlines()] == [1, 2, 3]


class Filling(NullConsole):
    """Takes the space away after the first epoch."""

    def log(self, line: str) -> None:
        if line.startswith("epoch 1/"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def test_a_file_that_may_not_grow_stops_the_run_in_a_sentence_with_its_checkpoints_intact(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")

    def action() -> int:
        try:
            fit(eventful(), run.folder, console=Filling())
        except RattleError as mistake:
            return fail(str(mistake))
        return 0

    child = Child(action, tmp_path / "log")
    assert child.wait() == 2, child.words()
    assert child.words().splitlines()[-1].endswith("File too large; what was saved earlier is intact")
    assert read_checkpoint(run.checkpoint("last")).progress["epoch"] == 1
    assert not list(run.folder.rglob("*.part"))
    fit(eventful(), run.folder, resume=True)
    assert [json.loads(line)["epoch"] for line in run.metrics.read_text().splitlines()] == [1, 2]


def test_weights_that_overflowed_are_not_saved_midway_either(tmp_path: Path) -> None:
    steep = Piecewise(drops=(0.5,), factor=1e30)
    with pytest.raises(RattleError, match=r"the loss diverged at step [45] "):
        fit(tiny("trades", schedule=steep, save_minutes=0), tmp_path)
    for name in ("last", "previous"):
        assert all(v.isfinite().all() for v in read_checkpoint(Run(tmp_path).checkpoint(name)).tensors.values())


def test_a_second_writer_is_refused_and_a_dead_one_s_lock_taken_over(tmp_path: Path) -> None:
    folder, inside = tmp_path / "run", tmp_path / "inside"

    def hold() -> None:
        with open_run(Run(folder), tiny()):
            inside.touch()
            time.sleep(60)

    child = Child(hold, tmp_path / "log")
    until(inside.exists)
    for how in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(RattleError, match="is being written by another process"):
            fit(tiny(epochs=1), folder, **how)
    child.send(signal.SIGKILL)
    child.wait()
    fit(tiny(), folder, resume=True)


@pytest.mark.parametrize("cut", [None, 10, -10])
def test_a_run_resumes_after_its_file_of_metrics_was_cut_or_deleted(
    whole: Run, tmp_path: Path, cut: int | None
) -> None:
    run = Run(tmp_path / "copy")
    shutil.copytree(whole.folder, run.folder)
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(run.metrics.read_bytes()[:cut])
    if cut is None:
        run.metrics.unlink()
    longer = replace(recipe_of(whole), epochs=3)
    fit(longer, run.folder, resume=True)
    kept = lines[:1] if cut == -10 else []
    assert run.metrics.read_bytes().splitlines(keepends=True)[:-1] == kept  # whole lines, and the third epoch's
    assert json.loads(run.metrics.read_bytes().splitlines()[-1])["epoch"] == 3


def test_a_last_checkpoint_of_another_recipe_is_refused_by_name_and_value(whole: Run, tmp_path: Path) -> None:
    run, other = Run(tmp_path / "copy"), Run(tmp_path / "other")
    shutil.copytree(whole.folder, run.folder)
    recipe = recipe_of(whole)
    fit(replace(recipe, optimizer=replace(recipe.optimizer, lr=0.123)), other.folder)
    shutil.copy(other.checkpoint("last"), run.checkpoint("last"))
    before = run.metrics.read_bytes()
    with pytest.raises(
        RattleError, match=r"last.safetensors is of another recipe \(optimizer.lr 0.123 -> .*\): put the"
    ):
        fit(recipe, run.folder, resume=True)
    assert run.metrics.read_bytes() == before


def test_memory_that_runs_out_is_a_sentence(tmp_path: Path) -> None:
    sizes = ["--width", "256", "--batch-size", "1000", "--data.val-size", "20", "--attack.steps", "1", "--threads", "1"]
    words = ["train", "digits-linf-cnn-trades", *sizes, "--epochs", "1", "--out", str(tmp_path / "run")]

    def action() -> int:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + 10**8, now + 10**8))
        return main(words)

    child = Child(action, tmp_path / "log")
    assert child.wait() == 2, child.words()
    assert child.words().splitlines()[-1].startswith("rattle: out of memory (")
    assert not list(tmp_path.rglob("*.part"))


def test_a_signal_while_modules_are_imported_stops_in_a_sentence_with_its_code(tmp_path: Path) -> None:
    blocking = tmp_path / "tyro.py"  # in place of a package that every command imports
    blocking.write_text("import pathlib, time\npathlib.Path(__file__).with_name('importing').touch()\ntime.sleep(60)\n")
    words = [sys.executable, "-m", "rattle", "train", "digits-linf-cnn-trades", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        until((tmp_path / "importing").exists)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "rattle: stopped by SIGTERM; what was saved is intact\n")
    assert not (tmp_path / "run").exists()
