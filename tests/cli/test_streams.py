"""Streams that are closed or full, locales without UTF-8 and names that are not: an exit code, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rattle.cli.main import main
from support.command import Command
from support.tiny_runs import save_run


def rattle(words: str, redirect: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m rattle {words} {redirect}"
    env = {**os.environ, **variables}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "redirect", "code"),
    [
        ("recipes digits-linf", ">&-", 0),
        ("recipes digits-linf", "2>&-", 0),
        ("recipes digits-linf", ">/dev/full", 2),
        ("evaluate gone", "2>&-", 2),
        ("evaluate gone", "2>/dev/full", 2),
        ("recipes digits-linf", "| head -1; exit ${PIPESTATUS[0]}", 0),
    ],
)
def test_a_stream_that_is_closed_or_full_leaves_an_exit_code(words: str, redirect: str, code: int) -> None:
    ended = rattle(words, redirect)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert "full" not in redirect or "No space left on device" in ended.stderr or "2>" in redirect


@pytest.mark.process
def test_a_working_directory_that_is_gone_is_not_blamed_on_stdout(tmp_path: Path) -> None:
    command = f"cd {tmp_path} && rmdir {tmp_path} && {sys.executable} -m rattle doctor"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "the working directory has been deleted" in ended.stderr


@pytest.mark.process
def test_a_library_that_torch_cannot_load_is_not_blamed_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('raise OSError("libgomp.so.1: cannot open shared object file")\n')
    ended = rattle("doctor", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert ended.returncode == 2
    assert "libgomp.so.1" in ended.stderr
    assert "stdout" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_rank_whose_neighbour_ended_says_so(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    def closed(_: list[str]) -> None:
        raise RuntimeError("[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:46281")

    monkeypatch.setattr("rattle.cli.recipes.main", closed)
    assert "another rank of the job has ended" in command.refused("recipes")


@pytest.mark.process
def test_a_locale_without_utf_8_shows_escapes() -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    ended = rattle("recipes n\u00f6pe", **plain)
    assert ended.returncode == 2
    assert "no recipe's name contains" in ended.stderr


def test_a_folder_whose_name_is_not_utf_8_is_refused_before_anything_is_written(here: Path, command: Command) -> None:
    few = ["--width", "4", "--epochs", "1", "--data.train-size", "20"]
    assert "UTF-8" in command.refused("train", "digits-linf-cnn-at", *few, "--out", "r\udcff")
    assert list(here.iterdir()) == []
    save_run(here / "run").rename(here / "r\udcff")  # somebody else's
    assert main(["evaluate", "r\udcff", "--attacks", "fgsm", "--n", "4"]) == 2
    assert main(["report", "r\udcff", "--no-compute"]) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is readable to root")
def test_a_recipe_that_may_not_be_read_is_refused_in_a_sentence(tmp_path: Path, command: Command) -> None:
    (tmp_path / "recipe.yaml").write_text("epochs: 3")
    (tmp_path / "recipe.yaml").chmod(0)
    assert "Permission denied" in command.refused("train", str(tmp_path / "recipe.yaml"))


def test_a_recipe_that_is_a_folder_is_refused_in_a_sentence(tmp_path: Path, command: Command) -> None:
    (tmp_path / "recipe.yaml").mkdir()
    assert command.refused("train", str(tmp_path)).count("\n") == 1
