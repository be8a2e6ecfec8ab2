"""Training is a function of the recipe: twice the same, resumed the same, and stopped in words when it diverges."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rattle.data import Augment
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.objectives import Trades
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import SGD, AdamW, Recipe
from rattle.recipes.schedules import Cosine, OneCycle, Piecewise
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.training import loop, metrics
from rattle.training.loop import fit
from rattle.weights import SWA
from support.training import Interrupting, Stop, check_resumes, content, eventful, tiny

GOLDEN = Path(__file__).with_name("golden_losses.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was never stopped."""
    return fit(eventful(), tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("stop", [{"epochs": 1}, {"steps": 5}, {"steps": 2}])
def test_a_resumed_run_is_the_run_that_was_never_stopped(whole: Run, tmp_path: Path, stop: dict[str, int]) -> None:
    with pytest.raises(Stop):
        fit(eventful(), tmp_path, console=Interrupting(**stop))
    run = fit(eventful(), tmp_path, resume=True)
    assert content(run) == content(whole)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("at", {"optimizer": AdamW(lr=0.01), "schedule": Cosine(warmup=0.4)}),
        ("at", {"optimizer": SGD(lr=0.05, decay_norms=False), "data": {"augment": Augment(pad=1, mix="mixup")}}),
        ("sota", {"data": {"extra": "extra.npz", "augment": Augment(pad=1, mix="cutmix")}}),
    ],
)
def test_runs_with_other_parts_resume_bit_for_bit_too(here: Path, method: str, settings: dict[str, Any]) -> None:
    image, label = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 10
    np.savez("extra.npz", image=image, label=label)
    recipe = tiny(method, save_minutes=0)
    settings = {**settings, "data": replace(recipe.data, **settings.get("data", {}))}
    check_resumes(replace(recipe, attack=replace(recipe.attack, steps=1), **settings), here, steps=5)


def test_when_no_checkpoint_can_be_read_the_run_is_refused_and_left_alone(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path / "copy")
    run = Run(tmp_path / "copy")
    for name in ("last", "previous"):
        run.checkpoint(name).write_bytes(b"")
    with pytest.raises(RattleError, match=r"no checkpoint in .* can be read"):
        fit(eventful(), run.folder, resume=True)
    assert run.metrics.read_text() == whole.metrics.read_text()


def test_metrics_are_one_json_object_a_line(whole: Run) -> None:
    lines = [json.loads(line) for line in whole.metrics.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert [line["step"] for line in lines] == [3, 6]
    for line in lines:
        assert line["loss"] == pytest.approx(sum(line[k] for k in ("clean", "zeroth", "first", "second")))
        assert 0 <= line["val_robust"] <= line["val_clean"] <= 1
        assert {"val_clean_average", "val_robust_average", "lr"} <= line.keys()
    assert lines[0]["lr"] == pytest.approx(0.05 * OneCycle()(2 / 6))
    assert lines[1]["lr"] == pytest.approx(0.05 * OneCycle()(5 / 6))


def test_a_run_folder_holds_what_it_promises(whole: Run) -> None:
    found = {str(p.relative_to(whole.folder)) for p in whole.folder.rglob("*") if p.is_file()}
    events = {name for name in found if name.startswith("events/")}
    assert len(events) == 1
    assert found - events == {
        "recipe.yaml",
        "environment.json",
        "metrics.jsonl",
        "timing.jsonl",
        "checkpoints/best.safetensors",
        "checkpoints/last.safetensors",
        "checkpoints/previous.safetensors",
        "lock",
    }
    assert Recipe.from_yaml(whole.recipe.read_text()) == eventful() == read_checkpoint(whole.checkpoint("best")).recipe


def test_the_share_of_a_known_peak_is_shown_and_counting_changes_nothing(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics, "PEAKS", {"cpu": 1e9})
    run = fit(eventful(), tmp_path)
    assert content(run) == content(whole)
    lines = [json.loads(line) for line in run.timing.read_text().splitlines()]
    per_image = [line["peak_share"] * 1e9 / line["images_per_second"] for line in lines]
    assert per_image[0] == pytest.approx(per_image[1])  # the operations of the first step are those of all
    assert f"{100 * lines[1]['peak_share']:.0f} % of peak" in capsys.readouterr().err
    assert {json.loads(line)["peak_share"] for line in whole.timing.read_text().splitlines()} == {None}


def test_the_best_checkpoint_is_that_of_the_best_epoch(whole: Run) -> None:
    robust = []
    for line in whole.metrics.read_text().splitlines():
        epoch = json.loads(line)
        robust.append(min(epoch["val_robust_average"], epoch["val_margin_average"]))  # it smooths labels
    progress = read_checkpoint(whole.checkpoint("best")).progress
    assert progress["best"] == max(robust)
    assert progress["epoch"] == progress["best_epoch"] == robust.index(max(robust)) + 1


def test_validation_finds_what_evaluate_finds(whole: Run) -> None:
    recipe, line = eventful(), json.loads(whole.metrics.read_text().splitlines()[-1])
    val = recipe.data.load().val
    assert val is not None
    for averaged, ending in ((True, "_average"), (False, "")):
        model = load(whole.checkpoint("last"), averaged=averaged)
        result = evaluate(model, val.x, val.y, recipe.validation_attacks, seed=recipe.seed)
        assert line[f"val_clean{ending}"] == result.clean_accuracy
        for name in ("val_robust", "val_margin"):
            assert line[name + ending] == result.attacks[name].accuracy


def test_the_margin_is_attacked_where_labels_are_smoothed() -> None:
    for method in ("at-2nd", "s2o-trades", "s2o-at", "avmixup", "label-smoothing"):
        assert [attack.loss for attack in tiny(method).validation_attacks.values()] == ["ce", "cw"]
    for method in ("at", "trades", "mart"):
        assert list(tiny(method).validation_attacks) == ["val_robust"]


def test_held_out_images_are_judged_every_n_epochs_and_at_the_end(tmp_path: Path) -> None:
    recipe = tiny("at", epochs=3, evaluate_every=2)
    run = fit(recipe, tmp_path / "held")
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert ["val_robust" in line for line in lines] == [False, True, True]
    run = fit(replace(recipe, batch_size=1000, data=replace(recipe.data, val_size=0)), tmp_path / "none")
    best = read_checkpoint(run.checkpoint("best")).progress
    assert (best["epoch"], best["step"]) == (3, 3)  # without them the last epoch is the best
    assert "val_robust" not in run.metrics.read_text()


def test_swa_is_the_mean_of_the_epochs_with_statistics_estimated_afresh(tmp_path: Path) -> None:
    recipe = tiny(average=SWA(start=0.0))
    with pytest.raises(Stop):
        fit(recipe, tmp_path, console=Interrupting(epochs=1))
    first = load(Run(tmp_path).checkpoint("last"), averaged=False)
    run = fit(recipe, tmp_path, resume=True)
    last, average = (load(run.checkpoint("last"), averaged=averaged) for averaged in (False, True))
    for name, p in average.named_parameters():
        assert torch.allclose(p, (first.get_parameter(name) + last.get_parameter(name)) / 2, atol=1e-6)
    assert not torch.equal(average.body[1].running_mean, last.body[1].running_mean)
    assert int(read_checkpoint(run.checkpoint("last")).part("average")["n_averaged"]) == 2


def test_kept_epochs_are_the_papers_and_change_nothing_else(tmp_path: Path) -> None:
    recipe = tiny(epochs=3, keep_checkpoints="paper")
    plain = fit(replace(recipe, keep_checkpoints="none"), tmp_path / "plain")
    whole = fit(recipe, tmp_path / "whole")
    assert sorted(path.stem for path in whole.checkpoints.glob("epoch-*")) == ["epoch-002", "epoch-003"]
    assert read_checkpoint(whole.checkpoint("epoch-002")).progress["epoch"] == 2
    assert plain.metrics.read_bytes() == whole.metrics.read_bytes()


def test_a_loss_that_diverges_stops_with_the_step_the_terms_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    recipe = tiny(schedule=Piecewise(drops=(0.5,), factor=1e25))
    with pytest.raises(RattleError) as caught:
        fit(recipe, tmp_path)
    run = Run(tmp_path)
    sentence = str(caught.value)
    assert sentence.startswith("the loss diverged at step 5 (clean nan, zeroth nan, first nan, second nan); ")
    assert f"the last good checkpoint is {run.checkpoint('last')}; try a smaller optimizer.lr" in sentence
    assert run.divergence == sentence.split(";")[0]
    saved = read_checkpoint(run.checkpoint("last"))
    assert saved.progress["epoch"] == 1
    assert all(v.isfinite().all() for v in saved.tensors.values())


def test_weights_that_overflow_in_an_epochs_last_step_are_not_saved(tmp_path: Path) -> None:
    steep, late = Trades(inv_lambda=1e6), Piecewise(drops=(0.8,), factor=1e44)  # the sixth of six steps
    recipe = tiny(objective=steep, schedule=late, optimizer=replace(tiny().optimizer, lr=1e-6))
    with pytest.raises(RattleError, match=r"diverged at step 6 \(.*weights nan\); the last good checkpoint is"):
        fit(recipe, tmp_path)
    assert read_checkpoint(Run(tmp_path).checkpoint("last")).progress["epoch"] == 1


def test_fit_takes_a_recipe_by_name_or_folder(whole: Run, tmp_path: Path) -> None:
    assert content(fit(str(whole.folder), tmp_path / "again")) == content(whole)
    with pytest.raises(RattleError, match="unknown recipe 'digits-linf-cnn-trade'; did you mean"):
        fit("digits-linf-cnn-trade", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def first_losses(folder: Path) -> list[dict[str, float]]:
    """The named terms of the first ten steps of digits-linf-cnn-trades-2nd, as each step returns them."""
    recipe = replace(get_recipe("digits-linf-cnn-trades-2nd"), width=8, epochs=2, evaluate_every=2, threads=1)
    losses, train_step = [], loop.train_step

    def recorded(*args: Any) -> dict[str, torch.Tensor]:
        terms = train_step(*args)
        losses.append({name: float(value) for name, value in terms.items()})
        return terms

    with pytest.MonkeyPatch.context() as patch, suppress(Stop):
        patch.setattr(loop, "train_step", recorded)
        fit(recipe, folder, console=Interrupting(steps=10))
    return losses


@pytest.mark.usefixtures("double")
def test_the_first_ten_losses_are_the_golden_ones(tmp_path: Path) -> None:
    """Catches silent numeric change. After a change that is meant, say so under "numerics" in CHANGELOG and run
    `PYTHONPATH=src:tests python tests/training/test_loop.py` to write golden_losses.json anew."""
    golden, found = json.loads(GOLDEN.read_text()), first_losses(tmp_path)
    assert len(golden) == len(found) == 10
    for wanted, terms in zip(golden, found, strict=True):
        assert terms == pytest.approx(wanted, rel=1e-9)


if __name__ == "__main__":
    import tempfile

    torch.set_default_dtype(torch.float64)
    with tempfile.TemporaryDirectory() as place:
        GOLDEN.write_text("[\n" + ",\n".join(json.dumps(terms) for terms in first_losses(Path(place))) + "\n]\n")


@pytest.mark.parametrize("settings", [{"batch_size": 1}, {"batch_size": 16, "accumulate": 16}])
def test_a_single_image_under_batchnorm_is_refused_before_the_first_step(tmp_path: Path, settings: dict) -> None:
    with pytest.raises(RattleError, match="BatchNorm needs two"):
        fit(tiny(**settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_threads_than_cores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="threads 1,000,000 is too many"):
        fit(tiny(threads=10**6), tmp_path / "run")
