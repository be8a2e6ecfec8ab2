"""Two machines: network namespaces joined by a cable, a torchrun agent in each; one is lost, the job starts again."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from support.double_precision import check_equal, five_steps, precisely
from support.processes import until

pytestmark = pytest.mark.process

NODES = {f"rattle{os.getpid()}{side}": f"10.77.0.{number}" for number, side in enumerate("ab", 1)}
ENDPOINT = "10.77.0.1:29400"
RECIPE = five_steps(2, save_minutes=0)  # a checkpoint after every step
# Every step takes half a second, so that a machine can be lost between two of them.
SCRIPT = """
import sys, time, torch
from rattle.runs import distributed
from rattle.training import loop

def slowly(*args, real=loop.train_step):
    time.sleep(0.5)
    return real(*args)

loop.train_step = slowly
torch.set_default_dtype(torch.float64)
with distributed.process_group():
    loop.fit(sys.argv[1], sys.argv[2], resume=True, log="none")
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """The names of two namespaces, each with one end of a veth pair."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the Debian package iproute2")
    first, second = NODES
    try:
        for name in NODES:
            ip("netns", "add", name)
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address in NODES.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError as reason:
        remove()
        pytest.skip(f"network namespaces are not allowed here: {reason.stderr.decode().strip()}")
    yield [first, second]
    remove()


def remove() -> None:
    """End what still runs in the namespaces, and the namespaces."""
    for name in NODES:
        switch_off(name)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def switch_off(name: str) -> None:
    """Kill every process of a machine."""
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    for pid in found.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def agent(name: str, folder: Path) -> subprocess.Popen:
    """Start a machine's torchrun agent; what it says goes to a file."""
    host = NODES[name] == ENDPOINT.split(":")[0]
    options = f"--nnodes 2 --nproc-per-node 1 --max-restarts 0 --rdzv-backend c10d --rdzv-endpoint {ENDPOINT}"
    options += f" --rdzv-id rattle --rdzv-conf is_host={int(host)} --local-addr {NODES[name]}"
    command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *options.split()]
    command += [str(folder / "train.py"), str(folder / "recipe.yaml"), str(folder / "run")]
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "cable"}
    with open(folder / f"{name[-1]}.log", "ab") as log:
        return subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)


@pytest.mark.slow
@pytest.mark.limit(600)
def test_a_job_that_lost_a_machine_ends_and_started_again_equals_one_process(
    machines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "recipe.yaml").write_text(RECIPE.to_yaml())
    run = Run(tmp_path / "run")
    jobs = [agent(name, tmp_path) for name in machines]
    until(run.checkpoint("previous").exists, 240)
    switch_off(machines[1])
    assert all(job.wait(120) != 0 for job in jobs)
    assert 0 < read_checkpoint(run.checkpoint("last")).progress["step"] < 5
    again = [agent(name, tmp_path) for name in machines]
    codes = [job.wait(240) for job in again]
    assert codes == [0, 0], "".join(path.read_text() for path in tmp_path.glob("?.log"))
    check_equal(precisely(replace(RECIPE, save_minutes=10), tmp_path / "one"), run)
