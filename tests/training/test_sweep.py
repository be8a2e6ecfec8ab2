"""A sweep is a grid of run folders that can be started again at any time."""

import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rattle.cli import main as cli
from rattle.cli.sweep import grid, occurrences
from rattle.errors import RattleError
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.runs.io import read_jsonl
from rattle.runs.lock import open_run
from rattle.runs.paths import Run, best_epoch
from rattle.runs.progress import NullConsole
from rattle.training import sweep
from rattle.training.loop import fit
from rattle.training.slurm import Slurm, submit
from rattle.training.sweep import Job, folder_name, pending, plan_sweep, run_local
from support.processes import Child, until
from support.training import tiny

RECIPE = "digits-linf-cnn-trades-2nd"
START = Path(__file__).parents[1] / "integration" / "slurm" / "start.sh"


def points(*words: str, seeds: tuple[int, ...] = ()) -> list[tuple[dict, Recipe]]:
    return grid(get_recipe(RECIPE), RECIPE, occurrences(list(words)), seeds)


def test_settings_with_several_values_and_seeds_make_a_grid() -> None:
    found = points("--objective.taylor.eta", "0.05", "0.1", "--epochs", "3", seeds=(0, 2))
    assert [(r.objective.taylor.eta, r.seed, r.epochs) for _, r in found] == [
        (0.05, 0, 3),
        (0.05, 2, 3),
        (0.1, 0, 3),
        (0.1, 2, 3),
    ]
    assert folder_name(found[1][0]) == "objective.taylor.eta=0.05,seed=2"


def test_kinds_lists_switches_and_fractions_can_be_swept() -> None:
    kinds = points("--average.kind", "EMA", "SWA", "--normalise", "true", "false")
    assert [(type(r.average).__name__, r.normalise) for _, r in kinds] == [
        ("EMA", True), ("EMA", False), ("SWA", True), ("SWA", False),
    ]  # fmt: skip
    lists = points("--schedule.drops", "0.5", "0.75", "--schedule.drops", "0.6")
    assert [r.schedule.drops for _, r in lists] == [(0.5, 0.75), (0.6,)]  # type: ignore[union-attr]
    assert len(points("--noise.sigma", "0.01", "1/100", "0.02")) == 3


@pytest.mark.parametrize("value", ["../../etc", "/etc/passwd", "a\nb", "..", "~", "$(rm -rf x)", "-rf", "é" * 300])
def test_no_value_leads_a_folder_out_of_the_sweep(tmp_path: Path, value: str) -> None:
    for point in ({"init": value}, {value: "1"}):
        name = folder_name(point)
        assert (tmp_path / name).resolve().parent == tmp_path.resolve()
        assert len(name) <= 120
        assert not name.startswith((".", "-"))
        assert not set(name) & set("/\\\n ~$()")


def test_two_runs_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RattleError, match=r"two runs of the sweep would be called objective.taylor.eta=0.1: give no value twice"
    ):
        plan_sweep(points("--objective.taylor.eta", "0.1", "0.1"), tmp_path)


def test_a_folder_that_holds_another_run_is_refused(tmp_path: Path) -> None:
    [job] = plan_sweep(points("--epochs", "3"), tmp_path)
    pending([job], NullConsole())
    with pytest.raises(RattleError, match="run holds a run of another recipe: choose another --out"):
        plan_sweep(points("--epochs", "4"), tmp_path)


@pytest.mark.parametrize("words", [["--objective.et", "0.1"], ["--epochs", "3", "many"], ["--epochs", "0", "1"]])
def test_a_setting_that_cannot_be_is_refused_before_anything_runs(here: Path, words: list[str]) -> None:
    try:
        code = cli.main(["sweep", RECIPE, *words])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert not list(here.iterdir())


def jobs(folder: Path, *names: str, epochs: int = 1) -> list[Job]:
    return [Job(folder / name, tiny("trades", epochs=epochs, seed=i)) for i, name in enumerate(names)]


@pytest.mark.process
def test_finished_runs_are_skipped_running_ones_left_alone_and_broken_ones_go_on(tmp_path: Path) -> None:
    done, broken, busy, new = todo = jobs(tmp_path, "done", "broken", "busy", "new")
    fit(done.recipe, done.folder)
    for job in (broken, busy):
        job.folder.mkdir()
        job.run.recipe.write_text(job.recipe.to_yaml())
    inside = tmp_path / "inside"

    def hold() -> None:
        with open_run(Run(busy.folder), busy.recipe, resume=True):
            inside.touch()
            signal.pause()

    child = Child(hold, tmp_path / "log")
    until(inside.exists)
    assert [job.state for job in todo] == ["finished", "unfinished", "running", "new"]
    assert pending(todo, NullConsole()) == [broken, new]
    assert new.run.recipe.exists()
    child.send(signal.SIGKILL)
    child.wait()
    assert busy.state == "unfinished"


@pytest.fixture
def pretender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of Python: notes that it runs, then does what the file `behave` says."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ncd {tmp_path}\ntouch "$4.started"\n. ./behave\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(sweep.sys, "executable", str(script))
    return tmp_path / "behave"


@pytest.mark.process
def test_so_many_runs_go_at_once_and_failures_are_reported_at_the_end(tmp_path: Path, pretender: Path) -> None:
    most = "ls *.live 2>/dev/null | wc -l >> counts"
    pretender.write_text(
        f'touch $$.live; {most}; sleep 0.4; rm $$.live; case "$4" in *bad) echo "rattle: no luck"; exit 2;; esac\n'
    )
    todo = pending(jobs(tmp_path / "sweep", "a", "bad", "c", "d"), NullConsole())
    assert run_local(todo, at_once=2, out=tmp_path, console=NullConsole()) == {"bad": "rattle: no luck"}
    assert len((tmp_path / "counts").read_text().split()) == 4
    assert max(map(int, (tmp_path / "counts").read_text().split())) <= 2


@pytest.mark.process
def test_the_command_fails_when_a_run_fails(
    tmp_path: Path, pretender: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretender.write_text("echo 'rattle: no luck'; exit 2\n")
    assert cli.main(["sweep", RECIPE, "--seeds", "0", "1", "--out", str(tmp_path / "sweep"), "--jobs", "2"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("rattle: 2 of 2 runs failed, the same command again resumes them: seed=")


@pytest.mark.process
def test_a_sweep_told_to_stop_tells_its_runs_and_waits_for_them(tmp_path: Path, pretender: Path) -> None:
    pretender.write_text("trap 'sleep 0.3; touch saved; exit 143' TERM; while :; do sleep 0.05; done\n")
    out = tmp_path / "sweep"
    child = Child(lambda: cli.main(["sweep", RECIPE, "--seeds", "0", "1", "--out", str(out)]), tmp_path / "log")
    until((out / "seed=0.started").exists)
    import time

    time.sleep(0.3)  # the trap is set
    child.send(signal.SIGINT)
    assert child.wait(10) == 130
    assert (tmp_path / "saved").exists()
    assert not (out / "seed=1.started").exists()


def test_a_process_that_cannot_start_is_not_blamed_on_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(sweep.subprocess, "Popen", refused)
    jobs = plan_sweep(points(seeds=(0,)), tmp_path)
    with pytest.raises(RattleError, match=r"cannot start another process .* fewer --jobs"):
        run_local(pending(jobs, NullConsole()), at_once=1, out=tmp_path, console=NullConsole())


def test_slurm_without_slurm_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RattleError, match=r"slurm\.nodes"):
        Slurm(nodes=0)
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RattleError, match="SLURM did not take the sweep: "):
        submit(jobs(tmp_path, "a"), Slurm(), tmp_path, NullConsole())


def test_slurm_without_submitit_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(RattleError, match=r"the slurm launcher needs submitit: pip install 'rattle-robust\[slurm\]'"):
        submit(jobs(tmp_path, "a"), Slurm(), tmp_path, NullConsole())


SIZES = ["--width", "4", "--data.train-size", "256", "--batch-size", "64", "--attack.steps", "2", "--threads", "1"]


def rattle(*args: str) -> subprocess.CompletedProcess:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    return subprocess.run([sys.executable, "-m", "rattle", *args], env=settings, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.process
def test_a_local_sweep_trains_skips_and_goes_on(tmp_path: Path) -> None:
    command = ["sweep", RECIPE, "--objective.taylor.eta", "0.05", "0.1", "--out", str(tmp_path), "--jobs", "2", *SIZES]
    first = rattle(*command, "--epochs", "2")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(f"2 of 2 runs are finished in {tmp_path}\n")
    robust = {path.parent: best_epoch(read_jsonl(path, []))[1] for path in tmp_path.glob("*/metrics.jsonl")}
    (best,) = re.findall(r"rattle evaluate (\S+) --attacks autoattack", first.stdout)
    assert robust[Path(best)] == max(robust.values())
    assert f"rattle report {tmp_path}/*/ --out {tmp_path}/report.html" in first.stdout
    folder = tmp_path / "objective.taylor.eta=0.1"
    for name in ("last", "previous"):
        Run(folder).checkpoint(name).unlink()
    weights = Run(tmp_path / "objective.taylor.eta=0.05").checkpoint("last")
    before = weights.stat().st_mtime_ns
    again = rattle(*command, "--epochs", "2")
    assert again.returncode == 0, again.stderr
    assert "objective.taylor.eta=0.05: finished" in again.stderr
    assert weights.stat().st_mtime_ns == before
    assert Run(folder).checkpoint("last").exists()


@pytest.mark.slow
@pytest.mark.process
def test_one_command_leads_from_methods_and_seeds_to_table_and_figure(tmp_path: Path) -> None:
    size = ["--width", "2", "--epochs", "1", "--attack.steps", "1", "--data.train-size", "130", "--out", str(tmp_path)]
    words = ["--methods", "at", "trades", "--seeds", "0", "1", "--attacks", "fgsm", "pgd3", "--n", "40", *size]
    done = rattle("sweep", *words)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:3] for line in (tmp_path / "table.md").read_text().splitlines()[2:4]]
    assert [[cell.strip() for cell in row] for row in rows] == [["AT", "2"], ["TRADES", "2"]]
    assert "2 seeds, n = 40" in done.stdout
    assert (tmp_path / "methods.png").stat().st_size > 1000
    again = rattle("sweep", *words)
    assert again.returncode == 0
    assert "attacks" not in again.stderr  # what is measured is kept


def test_methods_need_no_recipe_and_a_wrong_one_is_refused_at_once(here: Path, capsys: pytest.CaptureFixture) -> None:
    for words, wanted in (
        (["--methods", "trades", "tradess"], "digits-linf-cnn-tradess"),
        (["--seeds", "0"], "--methods"),
        (["digits-linf-cnn", "--methods", "at", "--attacks", "pdg20"], "pgd20"),
    ):
        assert cli.main(["sweep", *words]) == 2
        assert wanted in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.fixture
def slurm() -> None:
    """A SLURM of one node, on this machine."""
    pytest.importorskip("submitit")
    if os.geteuid() != 0 or shutil.which("slurmctld") is None or shutil.which("munged") is None:
        pytest.skip("needs root and the Debian packages slurm-wlm and munge")
    started = subprocess.run(["sh", str(START)], capture_output=True, text=True)
    if started.returncode:
        pytest.skip(f"SLURM does not start here: {started.stderr.strip()[-200:]}")
    yield
    subprocess.run(["sh", str(START.with_name("stop.sh"))], check=True)


@pytest.mark.process
@pytest.mark.slow
def test_a_slurm_sweep_finishes_though_one_of_its_jobs_is_cancelled_and_requeued(slurm: None, tmp_path: Path) -> None:
    command = ["sweep", RECIPE, "--seeds", "0", "1", "--out", str(tmp_path), "--launcher", "slurm", *SIZES]
    handed = rattle(*command, "--epochs", "40", "--slurm.time", "30")
    assert handed.returncode == 0, handed.stderr
    number = handed.stderr.split("seed=0: SLURM job ")[1].split()[0]
    run = Run(tmp_path / "seed=0")
    until(run.checkpoint("previous").exists, 300)
    subprocess.run(["scontrol", "requeue", number], check=True)
    todo = [
        Job(tmp_path / f"seed={i}", Recipe.from_yaml((tmp_path / f"seed={i}" / "recipe.yaml").read_text()))
        for i in (0, 1)
    ]
    until(lambda: all(job.state == "finished" for job in todo), 600)
    told = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True).stdout
    assert "Restarts=1" in told
    logs = "".join(path.read_text() for path in (tmp_path / "slurm").glob(f"{number}_*_log.*"))
    assert "stopped by SIGTERM; everything is saved in" in logs
    one = replace(todo[0].recipe)
    assert run.metrics.read_bytes() == fit(one, tmp_path / "whole").metrics.read_bytes()


def step_begun(run: Run) -> None:
    until(run.checkpoint("previous").exists, 300)


def jobs_in_queue() -> list[str]:
    return subprocess.run(["squeue", "--noheader", "--format", "%i"], capture_output=True, text=True).stdout.split()


@pytest.mark.process
@pytest.mark.slow
def test_the_script_for_several_machines_goes_on_in_the_next_job_of_a_chain(slurm: None, tmp_path: Path) -> None:
    """On the one machine there is, with two ranks."""
    script = Path(__file__).parents[2] / "examples" / "slurm_nodes.sh"
    words = [str(script), RECIPE, "--out", str(tmp_path / "run"), *SIZES, "--epochs", "30"]
    front = Path(sys.executable).parent
    python = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "PATH": f"{front}:{os.environ['PATH']}"}
    settings = {**os.environ, **python, "RANKS_PER_NODE": "2", "OMP_NUM_THREADS": "1"}

    def sbatch(*options: str) -> str:
        given = ["sbatch", "--parsable", "--chdir", str(tmp_path), "--output", "%j.log", *options, *words]
        return subprocess.run(given, env=settings, check=True, capture_output=True, text=True).stdout.strip()

    first = sbatch()
    second = sbatch("--dependency", f"afterany:{first}")
    run = Run(tmp_path / "run")
    step_begun(run)
    subprocess.run(["scancel", "--signal=TERM", first], check=True)
    until(lambda: not {first, second} & set(jobs_in_queue()), 600)
    assert "stopped by SIGTERM; everything is saved in" in (tmp_path / f"{first}.log").read_text()
    said = (tmp_path / f"{second}.log").read_text()
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 31)), said
    assert f"trained into {run.folder}" in said
