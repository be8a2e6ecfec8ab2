"""Cases: a file or a command line that is not as it should be, and the call that a user would make with it.

A case is (kind, number); the same one is the same bytes. `run_case` says how it ended.
"""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from safetensors.torch import save as serialise

import rattle
from fuzz import doors, formats, mutate
from fuzz.commands import Refused, command
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.runs.checkpoint import digest, read_checkpoint
from rattle.weights import AWP, EMA
from support import run_folders
from support.tiny_runs import RECIPE, digits, save_run, small_cnn
from support.training import tiny

Outcome = Literal["done", "refused", "traceback", "hang", "executed", "crash"]
GOOD = ("done", "refused")
LIMIT = 10.0  # seconds of the processor that a case may take
CANARY = "from pathlib import Path\nPath(__file__).with_name('executed').touch()\n"
FEW = ["--attacks", "fgsm", "--n", "4"]
QUICK = {"epochs": 1, "batch_size": 16, "width": 4}


class Hang(BaseException):
    """The time limit of a case."""


@cache
def base() -> Path:
    """A folder that every case gets a copy of: a run, its results, images, weights, and code that must not run."""
    folder = Path(tempfile.mkdtemp(prefix="rattle-fuzz-"))
    save_run(folder / "run")
    run_folders.whole(folder / "shown")
    run_folders.whole(folder / "other", right=0.9)
    for name in ("evil.py", "package/__init__.py", "package/module.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(CANARY)
    x, y, _, _ = digits()
    arrays = {
        "x_train": x[:40].numpy(),
        "y_train": y[:40].numpy(),
        "x_test": x[40:60].numpy(),
        "y_test": y[40:60].numpy(),
    }
    np.savez(folder / "images.npz", **arrays)
    torch.save(small_cnn().state_dict(), folder / "weights.pt")
    return folder


@cache
def plain_recipe() -> Any:
    recipe = tiny("trades-awp-2nd", **QUICK, awp=AWP(warmup=0), average=EMA(decay=0.5))
    return yaml.safe_load(recipe.to_yaml()) | {"data": {"name": "images.npz", "val_size": 4}}


def recipes(rng: random.Random) -> None:
    """A recipe of which a setting, or the text, is not as it should be, is trained."""
    if rng.random() < 0.75:
        text = yaml.safe_dump(mutate.data(rng, plain_recipe()), allow_unicode=True)
    else:
        text = mutate.text(rng, yaml.safe_dump(plain_recipe()))
    Path("recipe.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    command(["train", "recipe.yaml", "--out", "trained", "--log", "none", "--epochs", "1"])


def checkpoints(rng: random.Random) -> None:
    """A checkpoint with a right checksum and wrong content is opened by one of the doors."""
    last = rng.random() < 0.3
    saved = read_checkpoint(Path("run/checkpoints/best.safetensors"))
    progress = {"epoch": 1, "batch": 0, "step": 2, "sums": {"clean": 1.0}, "best": 0.5, "best_epoch": 1}
    progress |= {"metrics_size": 0, "rate": 1.0, "closed": False}
    texts = {"format": "2", "recipe": RECIPE.to_yaml(), "classes": list(saved.classes), "shape": [1, 8, 8]}
    texts |= {"progress": progress if last else {}}
    plain, tensors, how = {**texts}, dict(saved.tensors), rng.random()
    if how < 0.5:
        chosen = rng.choice(("classes", "shape", "progress"))
        plain[chosen] = mutate.data(rng, [plain[chosen]])
        plain[chosen] = plain[chosen][0] if isinstance(plain[chosen], list) and plain[chosen] else plain[chosen]
    elif how < 0.75:
        plain["recipe"] = yaml.safe_dump(mutate.data(rng, yaml.safe_load(RECIPE.to_yaml())), allow_unicode=True)
    else:
        found = mutate.state_dict(rng, tensors)
        tensors = {str(k): v for k, v in found.items() if storable(v)} if isinstance(found, dict) else {}
    kept = {k: v if isinstance(v, str) else json.dumps(v) for k, v in plain.items() if rng.random() > 0.02}
    kept = {k: v.encode("utf-8", "replace").decode() for k, v in kept.items()}
    tensors = {name: value.detach().contiguous().clone() for name, value in tensors.items()}
    content = serialise(tensors, {**kept, "digest": digest(tensors, kept)})
    Path(f"run/checkpoints/{'last' if last else 'best'}.safetensors").write_bytes(content)
    if last:
        command(["train", "run", "--resume", "--log", "none"])
        return
    ways = [["load"], ["evaluate", "run", *FEW], ["export", "run"], ["transfer", "--from", "run", "--to", "run", *FEW]]
    if rng.random() < 0.1:  # these take longer
        ways = [["push", "run", "me/x", "--to", "pushed"], ["report", "run"]]
        ways += [["fidelity", "run", "--n", "2", "--draws", "1", "--sigmas", "0.1"]]
    words = rng.choice(ways)
    if words == ["load"]:
        rattle.load("run")
    else:
        command(words)


def storable(value: Any) -> bool:
    """Whether safetensors can hold it."""
    tensor = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return tensor and not value.is_quantized and not value.is_meta and value.numel() < 10**6


def images(rng: random.Random) -> None:
    """A file of images that is not as it should be is loaded, shown or evaluated on."""
    with np.load("images.npz") as file:
        arrays = dict(file)
    mutate.archive(rng, arrays, Path("odd.npz"))
    call = rng.random()
    if call < 0.5:
        Data(name="odd.npz").load()
    elif call < 0.8:
        command(["evaluate", "run", "--data", "odd.npz", *FEW])
    else:
        command(["data", "show", "odd.npz"])


def weights(rng: random.Random) -> None:
    """A file of weights that is not as it should be is evaluated or trained from."""
    if rng.random() < 0.8:
        content = mutate.saved(mutate.state_dict(rng, dict(small_cnn().state_dict())))
    else:
        content = mutate.content(rng, Path("weights.pt").read_bytes())
    Path(name := rng.choice(("odd.pt", "odd.pth", "odd.safetensors"))).write_bytes(content)
    command(["evaluate", "--model", "cnn", "--width", "4", "--weights", name, "--data", "digits", *FEW])


def results(rng: random.Random) -> None:
    """A file of a run's results, figures or arrays is damaged before a command shows them."""
    files = sorted(path for path in Path("shown").rglob("*") if path.is_file())
    path = rng.choice(files)
    if path.suffix == ".npz":
        with np.load(path) as file:
            arrays = dict(file)
        mutate.archive(rng, arrays, path)
    elif path.suffix == ".json":
        path.write_text(mutate.as_json(rng, json.loads(path.read_text())), errors="replace")
    elif path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = mutate.as_json(rng, json.loads(lines[at]))
        path.write_text("\n".join(lines), errors="replace")
    elif rng.random() < 0.5:
        plain = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump(mutate.data(rng, plain), allow_unicode=True), errors="replace")
    else:
        path.write_bytes(mutate.content(rng, path.read_bytes()))
    runs = rng.choice((["shown"], ["shown", "other"], ["other", "shown"]))
    choice = rng.random()
    if choice < 0.4:
        command(["table", *runs, "--format", rng.choice(("markdown", "latex", "csv"))])
    elif choice < 0.7:
        command(["compare", *runs])
    else:
        command(["report", *runs, "--no-compute", "--out", "page.html"])


WORDS = {
    "evaluate": "--attacks --n --batch-size --seed --threat.epsilon --threat.norm --within --data",
    "export": "--format --out --raw",
    "transfer": "--from --to --attacks --n",
    "fidelity": "--sigmas --draws --n --seed",
    "gap": "--draws --n --seed",
    "table": "--format --out",
    "compare": "--json --out",
    "report": "--no-compute --out --baseline",
    "push": "--to --license --raw",
    "data": "show get digits --out",
    "recipes": "--zoo digits",
    "train": "--epochs --optimizer.lr --batch-size --width --data.train-size --device --schedule.kind",
    "landscape": "--points --images",
    "doctor": "",
    "x": "y",
}
NEEDED = {"train": ["--epochs", "1", "--data.train-size", "20", "--log", "none"]}
NEEDED |= {"landscape": ["--images", "0"], "evaluate": ["--n", "4", "--attacks", "fgsm"], "report": ["--no-compute"]}
VALUES = [
    "-1",
    "0",
    "1",
    "3",
    "nan",
    "inf",
    "-inf",
    "1e30",
    "8/255",
    "1/0",
    "x",
    "run",
    "shown",
    "gone",
    "fgsm",
    "digits",
    "digits-linf-cnn-trades",
    "images.npz",
]
VALUES += [
    "weights.pt",
    "evil.py",
    "zoo:x",
    "hf:x",
    "linf",
    "l2",
    "none",
    "csv",
    "/dev/null",
    ".",
    "..",
    "--",
    "-",
    "--help",
    "99999999999999999999",
]
VALUES += ["", "é", "\x1b[2J", "\udc80"]


def moved(rng: random.Random) -> None:
    """A run, or a part of it, is renamed, copied, linked or gone before a command uses it."""
    parts = ["run", "run/recipe.yaml", "run/checkpoints", "run/checkpoints/best.safetensors", "images.npz"]
    part, place = Path(rng.choice(parts)), Path(rng.choice(("new", "run/new", "other/run")))
    how = rng.random()
    if how < 0.4:
        with contextlib.suppress(OSError):  # into itself
            part.rename(place)
    elif how < 0.6 and part.is_dir():
        shutil.rmtree(part)
    elif how < 0.8:
        with contextlib.suppress(OSError):  # a hard link of a folder
            os.link(part, place)
    else:
        place.symlink_to(part.absolute())
    name = rng.choice(("run", str(place)))
    ways = [
        ["evaluate", name, *FEW],
        ["evaluate", name, "--data", "images.npz", *FEW],
        ["table", name],
        ["export", name],
    ]
    ways += [["train", name, "--resume", "--log", "none"], ["train", name, "--out", "again", "--log", "none"]]
    command(rng.choice(ways))


def commands(rng: random.Random) -> None:
    """A command line of words that belong there, in an order and with values that may not."""
    name = rng.choice(sorted(WORDS))
    own = WORDS[name].split()
    words = []
    if rng.random() < 0.8:
        words.append(rng.choice(("run", "shown", "digits-linf-cnn-trades", *VALUES)))
    for _ in range(rng.randrange(1, 5)):
        words.append(rng.choice([*own, *own, *VALUES]))
        if words[-1].startswith("--"):
            words.append(rng.choice(VALUES))
    command([name, *words[:7], *NEEDED.get(name, [])])


KINDS: dict[str, Callable[[random.Random], None]] = {
    each.__name__: each
    for each in (recipes, checkpoints, images, formats.formats, weights, results, moved, commands, doors.python)
}


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Hang in the body after some seconds of the processor, or ten times as many of a busy machine's clock."""

    def ring(number: int, frame: Any) -> None:
        raise Hang

    clocks = {signal.ITIMER_PROF: (signal.SIGPROF, seconds), signal.ITIMER_REAL: (signal.SIGALRM, 10 * seconds)}
    before = {number: signal.signal(number, ring) for number, _ in clocks.values()}
    left = {clock: signal.setitimer(clock, limit)[0] for clock, (_, limit) in clocks.items()}
    try:
        yield
    finally:
        for clock, (number, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(number, before[number])
            signal.setitimer(clock, left[clock])  # the limit of the test around it


def run_case(kind: str, number: int, *, seconds: float = LIMIT) -> tuple[Outcome, str]:
    """How a case ended, and the last lines of a traceback."""
    rng, here = random.Random(f"{kind} {number}"), Path.cwd()
    torch.manual_seed(number)
    with tempfile.TemporaryDirectory(prefix="rattle-case-", ignore_cleanup_errors=True) as place:
        folder = Path(shutil.copytree(base(), Path(place) / "work"))
        os.chdir(folder)
        found: tuple[Outcome, str] = ("done", "")
        try:
            out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", how) for how in ("strict", "backslashreplace"))
            quiet = contextlib.ExitStack()
            quiet.enter_context(contextlib.redirect_stdout(out))
            quiet.enter_context(contextlib.redirect_stderr(err))
            with warnings.catch_warnings(action="ignore"), limited(seconds), quiet:
                KINDS[kind](rng)
        except (Refused, RattleError):
            found = ("refused", "")
        except Hang:
            found = ("hang", f"longer than {seconds} s")
        except Exception:
            found = ("traceback", "\n".join(traceback.format_exc().splitlines()[-7:]))
        finally:
            os.chdir(here)
        ran = list(folder.rglob("executed"))
        return ("executed", str(ran[0])) if ran else found
