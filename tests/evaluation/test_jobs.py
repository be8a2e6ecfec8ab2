"""Several processes attack batches side by side: results are those of one, and what goes wrong in one is a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import APGD, PGD, AttackSequence, RayS
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.evaluation import jobs
from rattle.evaluation.evaluate import evaluate
from rattle.threat import Threat
from support.processes import until

THREAT = Threat(epsilon=0.03)
NETWORK = """
from torch import nn
def build(classes=10):
    return Net(classes)
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(144, classes)
    def forward(self, x):
        print("a network that prints")
        return self.head(self.conv(x).relu().flatten(1))
"""


def case(n: int = 36) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network with BatchNorm, and images that it classifies correctly."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    model, x = nn.Sequential(*layers).eval(), torch.rand(n, 3, 8, 8)
    return model, x, model(x).argmax(1)


# The processes of this test serve the next ones, until one is killed.
@pytest.mark.process
def test_two_processes_give_every_bit_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executors, start = [], jobs.get_reusable_executor

    def started(**settings: object) -> object:
        executors.append(start(**settings))
        return executors[-1]

    monkeypatch.setattr(jobs, "get_reusable_executor", started)
    attacks = {
        "both": AttackSequence({"pgd": PGD(threat=THREAT, steps=2), "apgd": APGD(threat=THREAT, steps=10)}),
        "rays": RayS(threat=THREAT, queries=60),
    }
    model, x, y = case()

    class Local(nn.Sequential):
        """Defined by a function, so that no other process can import it."""

    one, two = (
        evaluate(Local(model), x, y, attacks, batch_size=8, out=tmp_path / str(n), save_adversarial=True, jobs=n)
        for n in (1, 2)
    )
    first, second = executors  # of the two attacks
    assert first is second
    assert 0 < one.robust_accuracy < 1
    for name, attack in one.attacks.items():
        assert (attack.flags, attack.distances) == (two.attacks[name].flags, two.attacks[name].distances)
        assert attack.parts == two.attacks[name].parts
        files = [np.load(tmp_path / n / f"{name}-adversarial.npz") for n in "12"]
        assert all(np.array_equal(files[0][key], files[1][key]) for key in files[0].files)
    assert not [path for path in (tmp_path / "2").iterdir() if path.name.startswith(".")]


@pytest.mark.process
def test_what_cannot_be_pickled_is_refused() -> None:
    model, x, y = case(8)
    model.lock = Lock()  # type: ignore[assignment]
    with pytest.raises(RattleError, match="cannot be pickled"):
        evaluate(model, x, y, "fgsm", jobs=2)


@dataclass(frozen=True)
class Failing:
    """An attack that fails on the batch of a marked image, in the way it is told, once the others are in the cache."""

    how: str
    cache: str = ""
    threat: Threat = THREAT

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
        if bool((x == 1).flatten(1).all(1).any()):
            until(lambda: Path(self.cache).read_text().count("\n") == 3, seconds=300)
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no luck\nat all")
        return x


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "sentence"),
    [("raise", "^attacking a batch raised ValueError: no luck$"), ("kill", "was killed")],
)
def test_what_goes_wrong_in_one_is_a_sentence_and_the_batches_done_are_kept(
    how: str, sentence: str, tmp_path: Path
) -> None:
    model, x, _ = case(16)
    x[13] = 1
    y = model(x).argmax(1)
    attack = {"fails": Failing(how, cache=str(tmp_path / ".fails.0.partial"))}
    with pytest.raises(RattleError, match=sentence):
        evaluate(model, x, y, attack, batch_size=4, jobs=2, out=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / ".fails.0.partial").read_text().splitlines()]
    assert {row["first"] for row in rows} == {0, 4, 8}


@pytest.mark.process
def test_the_command_runs_a_file_of_the_users_in_every_process(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(NETWORK)
    words = ["evaluate", "--model", "net.py:build", "--random-weights", "--data", "digits", "--n", "40"]
    words += ["--batch-size", "10", "--attacks", "pgd3", "--threat.epsilon", "0.02", "--json"]
    flags = []
    for n in "12":
        assert main([*words, "--jobs", n, "--out", n]) == 0
        flags.append(json.loads(Path(n, "pgd3.json").read_text())["attacks"]["pgd3"]["flags"])
    assert flags[0] == flags[1]


SLEEPER = """
import sys, torch
from rattle.evaluation.evaluate import evaluate
from sleeping import Sleep
x = torch.rand(8, 1, 4, 4)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
try:
    evaluate(model, x, model(x).argmax(1), {"sleep": Sleep()}, batch_size=4, jobs=2)
except KeyboardInterrupt:
    sys.exit("stopped by the keyboard")
"""
SLEEP = """
import os, time
from rattle.threat import Threat
class Sleep:
    threat = Threat()
    def __call__(self, model, x, y, *, generator=None):
        open(f"at-work-{os.getpid()}", "w").close()
        time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_asked_for_it(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "sleeping.py").write_text(SLEEP)
    (tmp_path / "script.py").write_text(SLEEPER)
    parent = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while len(found := list(tmp_path.glob("at-work-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.send_signal(number)
    said = parent.communicate(timeout=60)[1]
    assert "Traceback" not in said  # loky warns of its semaphores where the parent was killed
    assert number != signal.SIGINT or said.strip() == "stopped by the keyboard"
    children = [int(path.name.rpartition("-")[2]) for path in found]
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a process is still there"
        time.sleep(0.05)
