"""A hang is a failure: a test that waits too long for a process fails, and says so."""

import subprocess
import sys
from pathlib import Path

import pytest

TEST = """
import subprocess, pytest

@pytest.mark.limit(1)
def test_waits():
    subprocess.run(["sleep", "60"])

def test_is_quick():
    pass
"""


@pytest.mark.process
@pytest.mark.slow
def test_a_test_that_waits_for_a_process_fails_at_its_limit(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "test_hanging.py").write_text(TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(root / "pyproject.toml"),
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "conftest", str(tmp_path / "test_hanging.py")]
    env = {"PYTHONPATH": f"{root / 'src'}:{root / 'tests'}", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100)
    assert "it took longer than 1 s" in ended.stdout, ended.stdout + ended.stderr
    assert "1 failed, 1 passed" in ended.stdout or ended.stdout.count("FAILED") == 1
