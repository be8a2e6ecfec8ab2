"""Training and evaluation on pictures that are decoded on the fly: the same for every stop, worker and rank."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rattle
from rattle.cli import main as cli
from rattle.data import Augment, Data
from rattle.data.decode import Pictures
from rattle.errors import RattleError
from rattle.evaluation import target as targets
from rattle.evaluation.target import target_from_checkpoint
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import SGD, Recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.training import loop
from rattle.training import state as states
from rattle.training.loop import fit
from rattle.training.minibatch import augmented, in_epoch
from support.double_precision import check_equal, precisely
from support.miniature import make
from support.processes import ranks, together
from support.training import content, dies_at, killed

SMALL = ["--data.crop", "16", "--batch-size", "8", "--epochs", "1", "--width", "2", "--attack.steps", "1"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of eight training and four test pictures."""
    path = tmp_path_factory.mktemp("pictures") / "set"
    make(path, train=8, val=4, side=20, classes=4)
    return path


def small(pictures: Path, workers: int = 2, **changes: object) -> Recipe:
    """Two epochs of three steps of a recipe for ImageNet, on the miniature."""
    recipe = get_recipe("imagenet-linf-cnn-slim-trades-2nd")
    augment = replace(recipe.data.augment, area=0.5)
    data = replace(recipe.data, name=str(pictures), crop=16, val_size=4, workers=workers, augment=augment)
    short = {"batch_size": 8, "epochs": 2, "width": 2, "threads": 1, "save_minutes": 0.0}
    return replace(recipe, **{"data": data, **short, **changes})


@pytest.fixture(scope="module")
def whole(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(small(pictures), tmp_path_factory.mktemp("runs") / "whole", log="none")


@pytest.mark.process
def test_a_run_killed_inside_an_epoch_resumes_as_if_nothing_had_happened(
    whole: Run, pictures: Path, tmp_path: Path
) -> None:
    recipe = small(pictures)
    killed(recipe, tmp_path / "run", dies_at((loop, "train_step"), 5))
    assert read_checkpoint(Run(tmp_path / "run").checkpoint("last")).progress["step"] == 4
    assert content(fit(recipe, tmp_path / "run", resume=True, log="none")) == content(whole)


@pytest.mark.process
def test_the_number_of_workers_changes_nothing(whole: Run, pictures: Path, tmp_path: Path) -> None:
    alone = fit(small(pictures, workers=0), tmp_path / "run", log="none")
    assert alone.metrics.read_bytes() == whole.metrics.read_bytes()
    one, other = (read_checkpoint(run.checkpoint("last")).tensors for run in (alone, whole))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.process
@pytest.mark.parametrize("mix", ["none", "cutmix"])
def test_each_epoch_shows_other_parts_and_what_is_announced_is_what_is_asked_for(pictures: Path, mix: str) -> None:
    recipe = replace(small(pictures, workers=1), objective=get_recipe("digits-linf-cnn-trades").objective)
    recipe = replace(
        recipe, accumulate=2, data=replace(recipe.data, augment=Augment(pad=0, flip=False, area=0.5, mix=mix))
    )
    state = states.init_state(recipe, recipe.data.load())
    batches, seen = list(torch.arange(24).split(8)), {}
    for epoch in (0, 1):
        state.progress.epoch = epoch
        images = in_epoch(state, state.data.train, batches)
        parts = [part for batch in batches for part in batch.chunk(2)]
        seen[epoch] = torch.cat([augmented(state, images, part)[0] for part in parts])
        assert not images.x.asked  # everything that was announced was asked for
        plain = in_epoch(state, state.data.train, [])
        assert torch.equal(torch.cat([augmented(state, plain, part)[0] for part in parts]), seen[epoch])
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.process
def test_a_run_is_evaluated_the_same_in_bounded_memory(
    whole: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["evaluate", str(whole.folder), "--attacks", "pgd5", "--json", "--batch-size", "6", "--out"]
    assert cli.main([*command, str(tmp_path / "memory")]) == 0
    wanted = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(targets, "LARGEST_DECODED", 0)
    target = target_from_checkpoint(whole.folder)
    assert isinstance(target.images().x, Pictures)
    assert isinstance(target.images(torch.arange(3)).x, Pictures)
    assert cli.main([*command, str(tmp_path / "bounded")]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("clean_flags", "images", "n"):
        assert found[name] == wanted[name]
    assert found["attacks"]["pgd5"]["flags"] == wanted["attacks"]["pgd5"]["flags"]


@pytest.mark.process
def test_a_network_without_a_run_is_evaluated_on_the_centres(
    pictures: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "--model", "cnn-slim", "--random-weights", "--data", str(pictures)]
    assert cli.main([*command, "--crop", "24", "--attacks", "fgsm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 16
    assert (here / "cnn-slim-results" / "fgsm.json").is_file()
    assert cli.main([*command, "--crop", "24", "--resize", "16"]) == 2
    assert "data.crop 24 is larger than data.resize 16" in capsys.readouterr().err


@pytest.mark.process
def test_a_dataset_that_is_decoded_is_given_by_its_name(pictures: Path, tmp_path: Path) -> None:
    recipe = small(pictures, epochs=1)
    with pytest.raises(RattleError, match=r"are given as Data\(name=FOLDER, crop=...\), not as a Dataset"):
        fit(recipe, tmp_path / "run", data=recipe.data.load())
    run = fit(replace(recipe, data=Data()), tmp_path / "run", data=recipe.data, log="none")
    assert rattle.load(run.folder)(torch.rand(1, 3, 16, 16)).shape == (1, 4)


# Several ranks


def exactly(pictures: Path) -> Recipe:
    """Five steps without a statistic that depends on how a batch is split."""
    recipe = replace(small(pictures, workers=1), model="cnn-plain", width=4, epochs=1, normalise=False)
    data = replace(recipe.data, val_size=0)
    return replace(recipe, data=data, batch_size=6, optimizer=SGD(lr=0.05))


@pytest.mark.process
def test_two_ranks_equal_one_process(pictures: Path, tmp_path: Path) -> None:
    together(lambda: precisely(exactly(pictures), tmp_path / "two"), tmp_path / "logs")
    check_equal(precisely(exactly(pictures), tmp_path / "one"), Run(tmp_path / "two"))


@pytest.mark.slow
@pytest.mark.process
def test_a_picture_that_one_rank_cannot_decode_stops_both(tmp_path: Path) -> None:
    make(tmp_path / "set", train=8, val=2, side=20, classes=4)
    (tmp_path / "set" / "train" / "class-03" / "00007.jpg").write_bytes(b"\xff\xd8 no picture")
    words = ["--data.name", str(tmp_path / "set"), "--out", str(tmp_path / "run"), "--data.val-size", "0"]
    args = ["train", "imagenet-linf-cnn-slim-at", *SMALL, *words, "--normalise", "False", "--log", "none"]
    children = ranks(2, lambda: cli.main(args), tmp_path / "logs")
    assert [child.wait(60) for child in children] == [2, 2]
    assert "00007.jpg" in "".join(child.words() for child in children)
