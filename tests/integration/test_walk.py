"""How many files an image passes on its way: a reader has to open each of them.

A file counts when one of its functions is given the images, alone or inside a dataset, a batch or a tuple.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

import rattle
from rattle.evaluation.evaluate import evaluate
from rattle.models.registry import create_model
from rattle.recipes.catalog import get_recipe
from rattle.training.loop import fit

SOURCE = os.path.dirname(rattle.__file__) + os.sep
SIDE = 8  # of the digits


def holds_images(value: object, depth: int = 0) -> bool:
    """Whether a value is images, or has them a few levels down."""
    if isinstance(value, Tensor):
        return value.ndim >= 3 and value.shape[-2:] == (SIDE, SIDE)
    if depth > 2 or isinstance(value, type):
        return False
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    inside = [*inside, *(getattr(value, name, None) for name in ("x", "train"))]
    return any(holds_images(each, depth + 1) for each in inside)


def files_passed(work: Callable[[], object]) -> set[str]:
    found = set()

    def on_call(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            name = code.co_filename.removeprefix(SOURCE)
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if name not in found and any(holds_images(frame.f_locals.get(each)) for each in given):
                found.add(name)

    sys.setprofile(on_call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_an_image_passes_at_most_twelve_files_in_an_evaluation() -> None:
    model, x, y = create_model("cnn", classes=10, channels=1), torch.rand(8, 1, SIDE, SIDE), torch.randint(10, (8,))
    passed = files_passed(lambda: evaluate(model, x, y, ["pgd5"]))
    assert {"evaluation/evaluate.py", "attacks/pgd.py", "threat.py"} < passed
    assert len(passed) <= 12, sorted(passed)


def test_an_image_passes_at_most_twenty_files_in_training(tmp_path: Path) -> None:
    recipe = get_recipe("digits-linf-cnn-trades-2nd")
    data = replace(recipe.data, train_size=64, val_size=0)  # its validation is an evaluation
    recipe = replace(recipe, epochs=1, width=4, batch_size=32, data=data)
    passed = files_passed(lambda: fit(recipe, tmp_path / "run", log="none"))
    assert {"data/dataset.py", "training/step.py", "forward.py", "attacks/pgd.py"} < passed
    assert len(passed) <= 20, sorted(passed)
