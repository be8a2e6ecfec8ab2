"""Small training runs for tests, and interruptions from inside."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401 - what training imports when it first needs it costs every forked process seconds
import torch.utils.tensorboard  # noqa: F401

from rattle.data.registry import Data
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import OneCycle
from rattle.runs.checkpoint import digest, read_checkpoint
from rattle.runs.paths import Run
from rattle.runs.progress import NullConsole
from rattle.training.loop import fit
from rattle.weights import AWP, EMA
from support.processes import Child

THREE_STEPS = {"batch_size": 64, "width": 4, "epochs": 2, "threads": 1}


def tiny(method: str = "trades-2nd", **changes: object) -> Recipe:
    """Two epochs of three steps on digits, with short attacks."""
    recipe = get_recipe(f"digits-linf-cnn-{method}")
    data = replace(recipe.data, train_size=192, val_size=20)
    attacks = {name: replace(getattr(recipe, name), steps=2) for name in ("attack", "val_attack")}
    return replace(recipe, **{**THREE_STEPS, "data": data, **attacks, **changes})


def eventful(**changes: object) -> Recipe:
    """Everything that has a state of its own: noise, AWP, EMA, momentum, a schedule, augmentation."""
    recipe = tiny("trades-awp-2nd", awp=AWP(warmup=1), average=EMA(decay=0.8), schedule=OneCycle(), **changes)
    return replace(recipe, data=replace(recipe.data, augment=Data().augment))


class Stop(Exception):
    """What a power cut looks like from inside."""


class Listening(NullConsole):
    """Keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


class Interrupting(NullConsole):
    """Stops training after some optimizer steps, or after some epochs were recorded."""

    def __init__(self, *, steps: int | None = None, epochs: int | None = None) -> None:
        self.steps, self.epochs, self.losses = steps, epochs, []

    def log(self, line: str) -> None:
        if self.epochs is not None and line.startswith("epoch"):
            self.epochs -= 1
            if self.epochs == 0:
                raise Stop

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0) -> Iterator:
        def advance(steps: int = 1, **figures: float | str) -> None:
            self.losses.append({k: v for k, v in figures.items() if k not in ("epoch", "best robust")})
            if len(self.losses) == self.steps:
                raise Stop

        yield advance


def content(run: Run) -> dict[str, object]:
    """What must not depend on when or how often a run was stopped, bit for bit."""
    found: dict[str, object] = {path.name: path.read_bytes() for path in (run.metrics, run.recipe)}
    for name in ("best", "last"):
        saved = read_checkpoint(run.checkpoint(name))
        found[name] = saved.progress, {key: digest({key: value}, {}) for key, value in saved.tensors.items()}
    return found


def check_resumes(recipe: Recipe, folder: Path, **stop: int) -> Run:
    """A run stopped somewhere and resumed is the run that was never stopped, which is returned."""
    whole = fit(recipe, folder / "whole", log="none")
    with pytest.raises(Stop):
        fit(recipe, folder / "parts", log="none", console=Interrupting(**stop))
    assert content(fit(recipe, folder / "parts", log="none", resume=True)) == content(whole)
    return whole


class Wholes(dict[str, Run]):
    """A run of each method that was never stopped, trained when it is first asked for."""

    def __init__(self, recipe: Callable[[str], Recipe], folder: Path) -> None:
        self.recipe, self.folder = recipe, folder

    def __missing__(self, method: str) -> Run:
        self[method] = fit(self.recipe(method), self.folder / method, log="none")
        return self[method]


def recipe_of(run: Run) -> Recipe:
    return Recipe.from_yaml(run.recipe.read_text())


def dies_at(place: tuple[object, str], count: int, *, after: bool = False) -> Callable[[], None]:
    """Patch a function so that its count-th call is a kill -9 of the process, before or after it has done its work."""

    def patch() -> None:
        module, name = place
        real, calls = getattr(module, name), 0

        def deadly(*args: object, **settings: object) -> object:
            nonlocal calls
            calls += 1
            result = real(*args, **settings) if after or calls < count else None
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(module, name, deadly)

    return patch


def killed(recipe: Recipe, folder: Path, patch: Callable[[], None], **how: bool) -> None:
    def action() -> None:
        patch()
        fit(recipe, folder, **how)

    child = Child(action, folder.with_suffix(".log"))
    assert child.wait() == -signal.SIGKILL, child.words()
