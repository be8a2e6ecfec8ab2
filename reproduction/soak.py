"""Soak: kill -9 whatever works for longer at random moments, give the command again, compare with one never stopped.

`python -m reproduction.soak --kills 1000` trains every method plainly and on two ranks, evaluates, reports, sweeps and
reproduces a table of the paper. It prints how often a process was killed and how many episodes ended bit for bit as the
one that was never stopped; clocks (timing.jsonl, seconds) are not compared. Processes are forked from one that has
torch imported, so that they start at once, and die like any other; those of the kind `torchrun` are started by it, and
one rank dies, or everything. `--kinds evaluation report` soaks these alone.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.utils.tensorboard  # before forking: the children need not import it again

import rattle.cli.evaluate
import rattle.cli.paper
import rattle.cli.report
import rattle.cli.sweep
import rattle.cli.train  # noqa: F401
from rattle.cli import main as cli
from rattle.data.registry import Data
from rattle.objectives.registry import METHODS
from rattle.recipes.names import list_recipes
from rattle.runs.checkpoint import digest, read_checkpoint
from rattle.runs.paths import Run
from rattle.training import sweep

SMALL = "--width 4 --data.train-size 64 --data.val-size 20 --batch-size 32 --threads 1 --epochs 2 --save-minutes 0"
AWP = "digits-linf-cnn-trades-awp-2nd --awp.warmup 1"
AVERAGES = {"ema": f"{AWP} --average.kind EMA", "swa": f"{AWP} --average.kind SWA --average.start 0"}
STALL = 600.0  # seconds after which a command counts as hanging
ATTACKS = ("pgd10", "square", "smoke-ensemble")
PAPER = ("--scale", "tiny", "--epochs", "1", "--train-size", "64", "--n", "20", "--autoattack-n", "5", "--yes")
LEFT_OUT = ("sota",)  # it needs generated images
Args = list[str]


@dataclass(frozen=True)
class Case:
    """A command that is killed, and what it leaves that must be the same."""

    kind: str
    name: str
    command: Callable[[Path], Args]
    content: Callable[[Path], object]
    ranks: int = 1
    torchrun: bool = False
    prepare: Callable[[Path], object] = lambda out: None


def run_forked(args: Args, environment: dict[str, str], said: str) -> int:
    """A process of its own that runs one command; forked, so that it starts at once."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive whoever started it
        os.environ.update(environment)
        log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = cli.main(args)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Forked:
    """What a sweep starts in place of `python -m rattle`: the same command in a forked process."""

    def __init__(self, command: Args, env: dict[str, str], **_: object) -> None:
        self.pid, self.returncode = run_forked(command[3:], env, f"worker-{os.getpid()}.log"), None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.01)


def run_torchrun(case: Case, out: Path) -> int:
    """torchrun, which starts the ranks."""
    # Without -- torchrun would take our --log for one of its own options.
    front = f"-m torch.distributed.run --standalone --nproc-per-node {case.ranks} -m -- rattle".split()
    with open("said-0.log", "wb") as said:
        command = [sys.executable, *front, *case.command(out)]
        return subprocess.Popen(command, stdout=said, stderr=said).pid


def ranks_of(agent: int) -> list[int]:
    """The processes that torchrun has started."""
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
    return []


def kill_torchrun(agent: int, moments: random.Random) -> bool:
    """Kill one rank, after which torchrun stops the other and fails, or everything at once; False if it had ended."""
    ranks = ranks_of(agent)
    alone = [moments.choice(ranks)] if ranks and moments.random() < 0.5 else None
    for pid in alone or [agent, *ranks]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    codes = end_of([agent], STALL)
    assert codes is not None, "torchrun hangs after the death of a rank"
    return codes != [0]


def start(case: Case, out: Path) -> list[int]:
    """The processes of a case's command, one for each rank; torchrun alone where it starts them."""
    if case.torchrun:
        return [run_torchrun(case, out)]
    if case.ranks == 1:
        return [run_forked(case.command(out), {}, "said-0.log")]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(case.ranks)}
    own = [meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(case.ranks)]
    return [run_forked(case.command(out), each, f"said-{rank}.log") for rank, each in enumerate(own)]


def end_of(pids: list[int], seconds: float) -> list[int] | None:
    """Their exit codes, None if they have not all ended by then."""
    codes: dict[int, int] = {}
    until = time.monotonic() + seconds
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > until and len(codes) < len(pids):
            return None
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def finish(case: Case, out: Path) -> float:
    """Run to the end; the seconds it took."""
    begun = time.monotonic()
    codes = end_of(start(case, out), STALL)
    said = " | ".join(path.read_text(errors="replace")[-500:] for path in sorted(Path().glob("said-*.log")))
    assert codes == [0] * len(codes or ()), f"{case.kind} {case.name} ended with {codes}: {said}"
    return time.monotonic() - begun


def killed(case: Case, out: Path, seconds: float, moments: random.Random) -> bool:
    """Start and kill, one rank a moment before the others; False when it had ended by then."""
    pids = start(case, out)
    time.sleep(seconds)
    if case.torchrun:
        return kill_torchrun(pids[0], moments)
    moments.shuffle(pids)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(moments.uniform(0, 0.1) if case.ranks > 1 else 0)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    wrong = [code for code in codes if code not in (0, -signal.SIGKILL)]
    assert not wrong or case.ranks > 1, f"{case.kind} {case.name} ended with {codes} before it was killed"
    return -signal.SIGKILL in codes


def trained(folder: Path) -> object:
    """Runs' content, those of teachers and of a sweep: lines, weights, averages, optimizer, progress."""
    found = {}
    for recipe in sorted(folder.parent.glob(f"{folder.name}*/**/recipe.yaml")):
        run = Run(recipe.parent)
        states = [
            (s.progress, digest(s.tensors, {})) for s in map(read_checkpoint, map(run.checkpoint, ("best", "last")))
        ]
        found[str(run.folder.relative_to(folder.parent))[len(folder.name) :]] = run.metrics.read_bytes(), states
    return found


def timeless(value: object) -> object:
    """JSON without what clocks said, and the commit, which somebody may make meanwhile."""
    if isinstance(value, dict):
        return {
            k: timeless(v) for k, v in value.items() if "seconds" not in k and k not in ("date", "created", "commit")
        }
    return [timeless(v) for v in value] if isinstance(value, list) else value


def evaluated(folder: Path) -> object:
    """An evaluation's content: results, and every adversarial image."""
    arrays = {path.name: {k: v.tobytes() for k, v in np.load(path).items()} for path in sorted(folder.rglob("*.npz"))}
    found = sorted(folder.rglob("*.json"))
    return {
        str(path.relative_to(folder)): timeless(json.loads(path.read_text().replace(str(folder), ""))) for path in found
    } | arrays


def reported(folder: Path) -> object:
    """The page without times and its own folder's name, and the arrays behind it."""
    page = re.sub(re.escape(str(folder)), "", (folder / "page.html").read_text())
    return re.sub(r"\d+(\.\d+)? (s|ms|seconds)\b", "", page), evaluated(folder)


def papered(folder: Path) -> object:
    """The runs of a table, their results, and the table as Markdown."""
    tables = {path.name: path.read_text() for path in sorted(folder.glob("*.md"))}
    return trained(folder), evaluated(folder), tables


def difference(one: object, other: object, where: str = "") -> str:
    """The first place where two contents differ, with a little of both; empty if they are the same."""
    if one == other:
        return ""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next(filter(None, (difference(one[k], other[k], f"{where}/{k}") for k in one)), where)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (difference(a, b, f"{where}/{i}") for i, (a, b) in pairs)), where)
    if isinstance(one, str) and isinstance(other, str):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
        one, other = one[max(0, at - 60) :], other[max(0, at - 60) :]
    return f"{where}: {str(one)[:150]} | {str(other)[:150]}"


def training(recipe: str) -> Callable[[Path], Args]:
    words = f"{recipe} --attack.steps 1 --val-attack.steps 1 {SMALL}".split()
    return lambda out: ["train", *words, "--out", str(out), "--resume", "--log", "none"]


def cases(place: Path) -> list[Case]:
    """Everything that is soaked. Ranks do not take every method at this size: those that refuse are left out there."""
    known = set(list_recipes())
    recipes = {name: r for name in METHODS if (r := f"digits-linf-cnn-{name}") in known and name not in LEFT_OUT}
    recipes |= AVERAGES
    found = [Case("training", name, training(recipe), trained) for name, recipe in recipes.items()]
    found += [Case("ranks", name, training(recipe), trained, ranks=2) for name, recipe in recipes.items()]
    found += [
        Case("torchrun", name, training(recipe), trained, ranks=2, torchrun=True) for name, recipe in recipes.items()
    ]
    model = place / "training-ema"
    attacks = ["--attacks", *ATTACKS, "--n", "30", "--threat.epsilon", "0.1", "--save-adversarial", "--out"]
    found += [
        Case("evaluation", f"{n} ranks", lambda out: ["evaluate", str(model), *attacks, str(out)], evaluated, ranks=n)
        for n in (1, 2)
    ]
    found += [
        Case(
            "report",
            "one run",
            lambda out: ["report", str(out / "run"), "--out", str(out / "page.html")],
            reported,
            prepare=lambda out: shutil.copytree(model, out / "run"),
        ),
        Case(
            "sweep",
            "two seeds",
            lambda out: ["sweep", *training(AVERAGES["ema"])(out)[1:-5], "--seeds", "0", "1", "--out", str(out)],
            trained,
        ),
        Case(
            "paper",
            "table 1",
            lambda out: ["paper", "1", *PAPER, "--out", str(out)],
            papered,
        ),
    ]
    return found


def episode(case: Case, out: Path, seconds: float, moments: random.Random, most: int) -> int:
    """Kill up to `most` times, then let it finish; how often it was killed."""
    kills = 0
    case.prepare(out)
    while kills < most and killed(case, out, moments.uniform(0, seconds), moments):
        kills += 1
    finish(case, out)
    return kills


def soak(wanted: int, kinds: list[str], moments: random.Random, place: Path, seconds: float) -> dict[str, int]:
    count: collections.Counter[str] = collections.Counter(killed=0, episodes=0, identical=0)
    whole: dict[str, tuple[float, object]] = {}
    every, begun = cases(place), time.monotonic()
    finish(next(case for case in every if case.name == "ema"), place / "training-ema")
    chosen = {
        kind: [case for case in every if case.kind == kind] for kind in kinds or dict.fromkeys(c.kind for c in every)
    }
    while count["killed"] < wanted and time.monotonic() - begun < seconds:
        turn = list(chosen.values())[count["turns"] % len(chosen)]  # kinds take turns, and so do the cases of each
        case = turn[count["turns"] // len(chosen) % len(turn)]
        count["turns"] += 1
        key, out = f"{case.kind}-{case.name}", place / f"{case.kind}{count['turns']}"
        try:
            if key not in whole:
                folder = place / f"whole-{len(whole)}"
                case.prepare(folder)
                whole[key] = finish(case, folder), case.content(folder)
            kills = episode(case, out, whole[key][0], moments, most=8)
            differs = difference(whole[key][1], case.content(out))
        except AssertionError as reason:
            differs, kills = str(reason), 0
        if differs:
            print(f"DIFFERENT: {key}{differs}", file=sys.stderr, flush=True)
        count["identical"] += not differs
        count.update({"episodes": 1, "killed": kills, f"killed_{case.kind}": kills, f"episodes_{case.kind}": 1})
        shutil.rmtree(out, ignore_errors=True)
        print(json.dumps(count), file=sys.stderr, flush=True)
    return dict(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kinds", nargs="*", default=[], help="training ranks torchrun evaluation report sweep paper")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after the episode under way by then")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Data(name="digits").load()
    sweep.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=None)  # type: ignore[assignment]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place, chdir(place):
        count = soak(options.kills, options.kinds, random.Random(options.seed), Path(place), 60 * options.minutes)
    print(json.dumps({**count, "seed": options.seed, "seconds": round(time.monotonic() - begun)}))
    sys.exit(count["identical"] != count["episodes"])


if __name__ == "__main__":
    main()
