"""What a release promises, as lines of text: names, parameters, commands, options, and what files hold.

`python tests/release/surface.py > tests/release/promised.txt`, in an environment with rattle, writes them down anew;
that is done once a release, and the diff is what the release takes away and adds.
"""

import contextlib
import importlib
import inspect
import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import rattle
from rattle.attacks.registry import list_attacks
from rattle.cli.main import COMMANDS, main
from rattle.data.sources import list_datasets
from rattle.models.registry import list_models
from rattle.objectives.registry import METHODS
from rattle.recipes.schema import flatten, to_plain
from rattle.runs.io import Plain
from rattle.runs.paths import InRun, Run

SMALL = ["--epochs", "1", "--width", "4", "--data.train-size", "40", "--data.val-size", "20"]


def surface() -> list[str]:
    """Every promise, a line each, in order."""
    return sorted({*names(), *commands(), *registered(), *recipe_keys(), *run_files(), *file_keys()})


def names() -> Iterator[str]:
    for name in rattle.__all__:
        value = getattr(rattle, name)
        yield f"name rattle.{name}"
        exception = inspect.isclass(value) and issubclass(value, Exception)
        for parameter in () if exception else inspect.signature(value).parameters.values():
            yield f"parameter rattle.{name} {parameter.name}"


def commands() -> Iterator[str]:
    for command in COMMANDS:
        yield f"command rattle {command}"
        options = getattr(importlib.import_module(f"rattle.cli.{command}"), "Options", None)
        for field in fields(options) if options and is_dataclass(options) else ():
            yield f"option rattle {command} {field.name.replace('_', '-')}"


def registered() -> Iterator[str]:
    """Those of the library itself: a test or a script may have registered others."""
    yield from (f"attack {name}" for name in list_attacks())
    yield from (f"dataset {name}" for name in list_datasets())
    yield from (f"model {name}" for name in list_models())
    for name, method in METHODS.items():
        yield f"method {name}"
        for field in fields(method.objective):
            yield f"setting of {name}: objective.{field.name}"


def recipe_keys() -> Iterator[str]:
    yield from (f"recipe {key}" for key in flatten(to_plain(rattle.Recipe())))


def run_files() -> Iterator[str]:
    files = [value.relative for value in vars(Run).values() if isinstance(value, InRun)]
    yield from (f"file of a run {name}" for name in files if name != "lock")  # which only processes here read


def file_keys() -> Iterator[str]:
    """Keys of the files that a small training, evaluation and publication really write."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run, published = Path(folder, "a"), Path(folder, "published")
        for words in (
            ["train", "digits-linf-cnn-trades-2nd", *SMALL, "--out", str(run)],
            ["evaluate", str(run), "--attacks", "fgsm", "--n", "10"],
            ["push", str(run), "me/a", "--to", str(published), "--no-page"],
        ):
            assert main(words) == 0, words
        yield from keys("metrics.jsonl", json.loads(Run(run).metrics.read_text().splitlines()[-1]))
        yield from keys("environment.json", json.loads(Run(run).environment.read_text()))
        yield from keys("results/ATTACK.json", json.loads((Run(run).results / "fgsm.json").read_text()))
        config = json.loads((published / "config.json").read_text())
        yield from keys("published config.json", dict.fromkeys(config))


def keys(file: str, plain: Plain) -> Iterator[str]:
    yield from (f"key of {file} {key}" for key in flatten(plain))


if __name__ == "__main__":
    print(
        f"# What rattle {rattle.__version__} promises (docs/guides/stability.md); written by tests/release/surface.py."
    )
    print("\n".join(surface()))
