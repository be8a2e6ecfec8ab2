"""What Windows lacks is hidden from a process, which still trains and evaluates."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

HIDDEN = """
import os, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios", "prctl"):
    sys.modules[name] = None
for place, names in (
    (os, ("fork", "forkpty", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "geteuid", "sched_getaffinity", "killpg")),
    (signal, ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGCHLD", "pthread_sigmask")),
):
    for name in names:
        if hasattr(place, name):
            delattr(place, name)
"""
TRAINED = """
from dataclasses import replace
import rattle
from rattle.cli.main import main
recipe = replace(rattle.get_recipe("digits-linf-cnn-standard"), width=2, epochs=1, evaluate_every=1)
run = rattle.fit(recipe, sys.argv[1], quiet=True)
test = recipe.data.load().test
found = rattle.evaluate(rattle.load(run.folder), test.x[:20], test.y[:20], "pgd1", check_model=False, quiet=True)
assert found.n == 20
assert main(["evaluate", sys.argv[1], "--attacks", "pgd1", "--n", "20"]) == 0
assert sys.modules["fcntl"] is None and not hasattr(os, "fork") and not hasattr(signal, "SIGUSR2")
"""


@pytest.mark.slow
def test_fit_and_evaluate_need_nothing_that_windows_lacks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HIDDEN + TRAINED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results").is_dir()
