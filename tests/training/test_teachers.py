"""Teachers of a run: trained first or along, stopped and resumed with it, reused, and refused in one sentence."""

import re
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.models.registry import create_model
from rattle.objectives.base import Teacher
from rattle.objectives.hat import HAT
from rattle.recipes.catalog import MEMORY
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.runs.progress import NullConsole, StoppedBySignal
from rattle.training.loop import fit as fit_with_events
from rattle.training.state import init_state
from rattle.weights import AWP
from support.training import content, recipe_of, tiny

ZOO = "zoo:digits-linf-cnn-trades"
fit = partial(fit_with_events, log="none")
SIZES = ["--width", "4", "--data.train-size", "128", "--batch-size", "64", "--threads", "1", "--epochs", "1"]


def short(method: str, **changes: object) -> Recipe:
    """Two epochs of three steps, with one step of attack."""
    recipe = tiny(method)
    attacks = {name: replace(getattr(recipe, name), steps=1) for name in ("attack", "val_attack")}
    return replace(recipe, **{"save_minutes": 0.0, **attacks, **changes})


def test_a_teacher_trained_along_learns_and_is_saved_with_every_checkpoint(tmp_path: Path) -> None:
    recipe = short("lbgat", awp=AWP(warmup=0))
    run = fit(recipe, tmp_path / "run")
    begun = init_state(recipe, recipe.data.load()).cotrained.state_dict()
    for name in ("best", "last"):
        saved = read_checkpoint(run.checkpoint(name)).part("teachers")
        assert saved.keys() == begun.keys()
        assert not torch.equal(saved["natural.head.weight"], begun["natural.head.weight"])
    assert int(saved["natural.body.1.num_batches_tracked"]) == 6  # AWP or not: two epochs of three steps


def test_the_command_trains_the_teacher_first_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    command = ["train", "digits-linf-cnn-hat", *SIZES, "--attack.steps", "1", "--out", run]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert f"training the teacher 'standard' first: Standard into {run}-teacher-standard" in said
    assert f"now the run itself: HAT into {run}" in said
    assert main(["evaluate", run, "--attacks", "pgd5", "--n", "40"]) == 0
    # Given, the same teacher makes the same run: neither the command's estimate nor where it comes from matters.
    weights = f"{run}-teacher-standard/checkpoints/last.safetensors"
    assert main([*command[:-1], str(tmp_path / "given"), "--objective.teacher.weights", weights]) == 0
    assert not (tmp_path / "given-teacher-standard").exists()
    one, two = (read_checkpoint(Run(tmp_path / name).checkpoint("last")).part("model") for name in ("run", "given"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_signal_while_the_teacher_trains_names_the_run_to_resume(tmp_path: Path) -> None:
    class Signalling(NullConsole):
        def log(self, line: str) -> None:
            if line.startswith("epoch"):
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(
        StoppedBySignal, match=rf"everything is saved in {tmp_path}/run: `rattle train {tmp_path}/run --resume`"
    ):
        fit(short("hat"), tmp_path / "run", console=Signalling())
    assert recipe_of(Run(tmp_path / "run")).method == "HAT"  # so that `rattle train RUN --resume` knows what to do
    assert read_checkpoint(Run(tmp_path / "run-teacher-standard").checkpoint("last")).progress["epoch"] == 1
    assert fit(recipe_of(Run(tmp_path / "run")), tmp_path / "run", resume=True).checkpoint("best").exists()


def test_a_teacher_is_kept_renamed_and_replaced_with_its_run(tmp_path: Path) -> None:
    run, teacher = fit(short("hat", epochs=1), tmp_path / "run"), Run(tmp_path / "new-teacher-standard")
    run.folder.rename(tmp_path / "new")
    with pytest.raises(RattleError, match="new-teacher-standard, which is not there"):
        fit(short("hat"), tmp_path / "new", resume=True)
    (tmp_path / "run-teacher-standard").rename(teacher.folder)
    before = content(teacher)
    fit(short("hat"), tmp_path / "new", resume=True)  # longer, its teacher not
    assert content(teacher) == before
    wider = short("hat", epochs=1, width=6)
    shutil.copytree(teacher.folder, tmp_path / "other-teacher-standard")
    with pytest.raises(RattleError, match=r"the teacher 'standard' belongs in .* holds a run of another recipe"):
        fit(wider, tmp_path / "other")
    fit(wider, tmp_path / "new", overwrite=True)
    assert recipe_of(teacher).width == 6


def pictures(classes: int = 10, channels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.rand(80, channels, 8, 8), torch.arange(80) % classes


@pytest.mark.parametrize(
    ("teacher", "data", "words"),
    [
        ({"weights": "nowhere"}, pictures(), " (nowhere): there is no run or checkpoint nowhere"),
        ({"weights": ZOO}, pictures(classes=3), f" ({ZOO}): the model has 10 outputs, but the data have 3 classes"),
        ({"weights": ZOO}, pictures(channels=3), f" ({ZOO}): the model does not take images of shape [3, 8, 8]"),
        ({"model": "cnnn"}, pictures(), ": unknown model 'cnnn'; did you mean 'cnn'"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_before_anything_is_written(
    teacher: dict[str, str], data: tuple[torch.Tensor, torch.Tensor], words: str, tmp_path: Path
) -> None:
    with pytest.raises(RattleError, match=re.escape(f"the teacher 'standard'{words}")):
        fit(short("hat", objective=HAT(teacher=Teacher(**teacher)), data=MEMORY), tmp_path / "run", data=data)
    assert not list(tmp_path.iterdir())


def test_settings_of_a_teacher_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(RattleError, match="a teacher's width 4 does nothing without its model"):
        Teacher(width=4)
    with pytest.raises(RattleError, match=f"a teacher's model cnn does nothing: its weights {ZOO}"):
        Teacher(model="cnn", weights=ZOO)


def test_images_and_a_module_given_in_python_may_have_a_teacher(tmp_path: Path) -> None:
    data, module = pictures(), create_model("cnn", classes=10, channels=1, width=4)
    named = {"epochs": 1, "data": MEMORY}
    with pytest.raises(RattleError, match="'standard': it would have the network of the module given in Python"):
        fit(short("hat", **named), tmp_path / "run", model=module, data=data)
    assert not list(tmp_path.iterdir())
    recipe = short("hat", objective=HAT(teacher=Teacher(model="cnn", width=4)), **named)
    fit(recipe, tmp_path / "run", model=module, data=data)
    assert recipe_of(Run(tmp_path / "run-teacher-standard")).model == "cnn"
    fit(recipe, tmp_path / "run", model=module, data=data, resume=True)
