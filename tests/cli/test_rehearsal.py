"""Wrong values are refused before torch is imported, by the command's own code and in its own words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rattle.cli import rehearsal
from rattle.cli.main import COMMANDS, main
from support import run_folders as made

AT = "digits-linf-cnn-at"
CUSTOM = "train custom --data.name digits --model cnn"
MISTAKES = {
    f"train {AT} --epochs many": "Error parsing --epochs: invalid literal for int()",
    f"train {AT} --epochs 0": "epochs must be >= 1, got 0",
    f"train {AT} --attack.steps 0": "steps must be >= 1, got 0",
    f"train {AT} --attack.threat.epsilon nine": "Error parsing --attack.threat.epsilon: value must be a number",
    f"train {AT} --attack.threat.epsilon -1": "threat.epsilon must be >= 0, got -1.0",
    f"train {AT} --optimizer.lr 0": "optimizer.lr must be > 0, got 0.0",
    f"train {AT} --precision fp8": "invalid choice 'fp8'",
    f"train {AT} --schedule.kind Linear": "--schedule.kind must be one of Piecewise, Cosine, OneCycle, got 'Linear'",
    f"train {AT} --awp.kind AWP --awp.warmup 100": "awp.warmup 100 outlasts the 30 epochs",
    f"train {AT} --evaluate-every 90": "evaluate-every 90 does nothing in 30 epochs",
    f"train {AT} --device gpu": "there is no device 'gpu' here: it is auto, cpu, cuda",
    f"train {AT} --data.name digit": "unknown dataset 'digit'; did you mean 'digits'?",
    "train digits-linf-foo-at": "unknown model 'foo'",
    "train bad.yaml": "bad.yaml: epochs must be int, got 'many'",
    "train code.yaml": "code.yaml names code to run as its model: os:abort",
    "sweep code.yaml --seeds 0": "code.yaml names code to run as its model: os:abort",
    "train run --out run": "run holds a run already: --resume continues it, --overwrite replaces it",
    f"{CUSTOM} --epsilon 8": "--epsilon is between 0 and 1, since images are in [0, 1], got 8: did you mean 8/255?",
    f"{CUSTOM} --norm l3": "--norm must be linf or l2, got 'l3'",
    f"{CUSTOM} --method trade": "unknown method 'trade'; did you mean 'trades'?",
    f"sweep {AT} --epochs 1 many": "Error parsing --epochs",
    f"sweep {AT} --seeds a b": "Error parsing --seeds",
    f"sweep {AT} --jobs 0": "jobs must be >= 1, got 0",
    "evaluate run --n 0": "the number of images must be >= 1, got 0",
    "evaluate run --n many": "Error parsing --n",
    "evaluate run --first": "--first goes with --n, and not with --within",
    "evaluate run --n 9 --first --within 2": "--first goes with --n, and not with --within",
    "evaluate run --within 0": "within is in percentage points, between 0 and 50, got 0.0",
    "evaluate run --batch-size 0": "batch-size must be >= 1, got 0",
    "evaluate run --threat.norm l7": "invalid choice 'l7'",
    "evaluate run --threat.epsilon -8/255": "threat.epsilon must be >= 0, got -0.03",
    "evaluate run --epsilons 0.1 -0.1": "threat.epsilon must be >= 0, got -0.1",
    "evaluate run --attacks": "--attacks needs at least one name, such as pgd20 or autoattack",
    "evaluate run --attacks pgd20 --cw20.restarts 3": "--cw20.* changes cw20, but --attacks runs pgd20",
    "evaluate run --attacks pgd20 --pgd20.step-sise 1": "unknown setting of pgd20 'step_sise'",
    "evaluate run --weights w.pt": "--weights belongs to --model; run knows its own",
    "evaluate run --verify none.npz": "there is no file none.npz to verify",
    "evaluate --attacks pgd20": "say what to evaluate: a run or checkpoint, or --model NAME",
    "evaluate --model cnn": "--model cnn has no trained weights of its own: give them with --weights FILE",
    "transfer --from run --to run --n 0": "the number of images must be >= 1, got 0",
    "fidelity run --draws 0": "draws must be >= 1 and every sigma > 0, got 0",
    "landscape run --points 4": "landscape points must be odd and >= 3, so that 0 is one of them, got 4",
    "export run --format pickle": "invalid choice 'pickle'",
    "push run noname": "a repository on the hub is written OWNER/NAME, got 'noname'",
    "bench --batch 0": "batch must be >= 2, got 0",
    "bench --rounds 0": "rounds must be >= 1, got 0",
    "demo --epochs 0": "epochs must be >= 1, got 0",
    "paper one": "a table is given by its number, 1 to 8, got 'one'",
    "paper 1 --scale tiny --n 0": "--n must be >= 1, got 0",
    "paper 1 --scale tiny --jobs 0": "jobs must be >= 1, got 0",
    "data show digits --out x.jpg": "--out must be a .png file, got x.jpg",
    "report run --compute maybe": "Unrecognized options: maybe",
    "recipes --yaml nothing": "unknown recipe 'nothing'",
}
RIGHT = [
    f"train {AT} --epochs 3 --attack.threat.epsilon 8/255 --awp.kind SAM --data.val-size none",
    f"{CUSTOM} --epochs 3",
    f"sweep {AT} --optimizer.lr 0.1 0.2 --seeds 0 1",
    "evaluate run --n 9 --within 2 --attacks pgd20 autoattack --pgd20.step-size 0.01 --epsilons 0.1 0.2",
    "evaluate --model cnn --random-weights --data digits",
    "transfer --from run --to run",
    "fidelity run --sigmas 0.1",
    "landscape run --points 5",
    "paper 1 --scale tiny --plan",
    "bench --quick",
    "report run",
]
# Imports every command once, with blank packages, then reads the arguments of each line; prints what each one said.
ALL = """
import contextlib, importlib, io, json, sys
from rattle.cli import rehearsal
from rattle.errors import RattleError
import rattle.cli.options
def said(line):
    command, *args = line.split()
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            modules[command].read(args)
        except RattleError as mistake:
            return f"rattle: {mistake}\\n"
        except SystemExit:
            return errors.getvalue()
        except rehearsal.NeededForReal:
            return "undecided"
    return "nothing"
lines = json.load(sys.stdin)
with rehearsal.blank_packages():
    modules = {line.split()[0]: importlib.import_module(f"rattle.cli.{line.split()[0]}") for line in lines}
json.dump([said(line) for line in lines], sys.stdout)
sys.exit(' '.join({*rehearsal.BLANK} & {*sys.modules}) or 0)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and recipe files that are wrong."""
    folder = tmp_path_factory.mktemp("place")
    made.recipe(folder / "run")
    (folder / "bad.yaml").write_text("epochs: many\n")
    (folder / "code.yaml").write_text("model: os:abort\n")
    (folder / "bad\x1b[31m.yaml").write_text("epochs: many\n")
    return folder


@pytest.fixture(scope="module")
def rehearsed(place: Path) -> dict[str, str]:
    """What was said to each line, without torch."""
    lines, process = [*MISTAKES, *RIGHT], [sys.executable, "-c", ALL]
    answer = subprocess.run(process, input=json.dumps(lines), capture_output=True, text=True, cwd=place, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return dict(zip(lines, json.loads(answer.stdout), strict=True))


def words(text: str) -> list[str]:
    """Without the parser's frame, whose lines depend on the terminal, and the order of its choices, which is chance."""
    return sorted(re.findall(r"\w+", text))


@pytest.mark.parametrize("line", MISTAKES)
def test_a_wrong_value_is_refused_without_torch_in_the_words_of_the_command(
    line: str,
    rehearsed: dict[str, str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert MISTAKES[line] in " ".join(rehearsed[line].split())
    monkeypatch.chdir(place)
    try:
        code = main(line.split())  # with torch
    except SystemExit as stop:
        code = stop.code
    assert (code, words(capsys.readouterr().err)) == (2, words(rehearsed[line]))


@pytest.mark.parametrize("line", RIGHT)
def test_what_is_right_is_not_refused_without_torch(line: str, rehearsed: dict[str, str]) -> None:
    assert rehearsed[line] in ("nothing", "undecided")


def test_a_whole_process_refuses_with_exit_code_2_and_has_not_imported_torch(place: Path) -> None:
    lines = [f"train {AT} --epochs many", "train bad\x1b[31m.yaml", "evaluate run --n 0"]
    code = (
        "import sys; from rattle.cli import main, rehearsal\n"
        f"assert [main(line.split()) for line in {lines!r}] == [2, 2, 2]\n"
        "assert not rehearsal.refuses('train', [])  # its `read` fails: the command has the word\n"
        "sys.exit('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert "Error parsing --epochs" in answer.stderr
    assert "rattle: bad\\x1b[31m.yaml: epochs must be int" in answer.stderr
    assert answer.stderr.endswith("rattle: the number of images must be >= 1, got 0\n")


def test_the_command_s_own_process_does_not_wait_for_torch_to_refuse(place: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")  # imported while the rehearsal runs
    command = [sys.executable, "-m", "rattle", "evaluate", "run", "--n", "0"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    answer = subprocess.run(command, capture_output=True, text=True, cwd=place, env=environment, timeout=120)
    assert (answer.returncode, answer.stderr) == (2, "rattle: the number of images must be >= 1, got 0\n")


def test_every_command_that_imports_torch_reads_its_arguments_first() -> None:
    without = {name for name in COMMANDS if not rehearsal.has_read(name)}
    assert without == {"compare", "table", "watch", "completion"}
    imports = "; ".join(f"import rattle.cli.{name}" for name in sorted(without))
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_a_use_of_torch_ends_the_rehearsal_even_where_errors_are_turned_into_sentences() -> None:
    code = (
        "from rattle.cli import rehearsal\n"
        "with rehearsal.blank_packages():\n"
        "    import torch; from torch import nn\n"
        "    class Net(nn.Module): pass\n"
        "    @torch.no_grad()\n"
        "    def f(x): pass\n"
        "def tries(use):\n"
        "    try:\n"
        "        try: use()\n"
        "        except Exception as reason: raise SystemExit('taken for a mistake') from reason\n"
        "    except rehearsal.NeededForReal: return\n"
        "    raise SystemExit('nothing happened')\n"
        "def late(): import torch\n"
        "for use in (lambda: torch.zeros(1), Net, lambda: f(1), lambda: nn.Linear, late): tries(use)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, "")
