"""What a page needs computed: gallery, landscapes and flatness of a small trained run, and the commands around them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rattle.analysis.gallery import choose_shown, gallery
from rattle.analysis.prepare import (
    LandscapeConfig,
    compute_landscapes,
    open_trained,
    prepare,
    store_landscapes,
)
from rattle.cli import main as cli
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.recipes.catalog import get_recipe
from rattle.runs.arrays import Gallery, InputPlane, InputSurface, WeightSurface
from rattle.runs.io import load_arrays, save_arrays
from rattle.runs.load import open_checkpoint
from rattle.runs.progress import NullConsole
from rattle.training.loop import fit

TINY = LandscapeConfig(
    images=1, points=5, weight_images=8, line_points=3, surface_points=3, attack_steps=1, iterations=2, draws=2
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = get_recipe("digits-linf-cnn-trades")
    data = replace(recipe.data, train_size=256, val_size=20)
    recipe = replace(recipe, epochs=1, width=4, batch_size=64, data=data)
    return fit(recipe, tmp_path_factory.mktemp("trained") / "run").folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gallery of the first 20 test images: for what does not depend on their number."""
    monkeypatch.setattr("rattle.analysis.prepare.gallery", partial(gallery, max_images=20))


@pytest.fixture(scope="module")
def made(trained: Path) -> Gallery:
    return gallery(open_checkpoint(trained), max_images=60)


def test_robust_flags_fall_with_the_radius_and_begin_at_clean_accuracy(made: Gallery) -> None:
    assert np.array_equal(made.robust[0], made.clean_predicted == made.y)
    assert (made.robust[1:] <= made.robust[:-1]).all()
    assert list(made.epsilons) == sorted(made.epsilons)
    wrong = made.clean_predicted != made.y
    assert np.array_equal(made.adversarial_predicted[wrong], made.clean_predicted[wrong])


def test_gallery_pictures_are_test_images_moved_within_the_ball(made: Gallery) -> None:
    assert list(made.y[made.index[made.group == "first"]]) == list(range(10))
    test = Data(name="digits").load().test
    assert np.allclose(made.x, test.x[torch.as_tensor(made.index)].numpy() / 255)
    moved = np.abs(made.x_adv - made.x).reshape(len(made.x), -1).max(1)
    assert (moved <= made.epsilon + 1e-6).all()
    assert (moved > made.epsilon / 2).all()
    assert ((made.clean_confidence > 0.1) & (made.clean_confidence <= 1)).all()
    for group, holds in (("failure", False), ("survivor", True)):
        index = made.index[made.group == group]
        assert (made.clean_predicted[index] == made.y[index]).all()
        assert ((made.adversarial_label[made.group == group] == made.y[index]) == holds).all()
    assert set(made.group) > {"first"}


def test_images_are_chosen_by_confidence() -> None:
    y, clean = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 0])
    attacked, confidence = torch.tensor([1, 0, 0, 1, 0]), torch.tensor([0.6, 0.9, 0.8, 0.7, 1.0])
    shown = choose_shown(y, clean, attacked, confidence)
    assert {name: rows.tolist() for name, rows in shown.items()} == {
        "first": [0, 2],
        "failure": [2, 0],  # not the last, which was wrong before the attack
        "survivor": [3, 1],
    }


def test_a_gallery_is_the_same_each_time_and_comes_back_from_its_file(
    made: Gallery, trained: Path, tmp_path: Path
) -> None:
    again = gallery(open_checkpoint(trained), max_images=60)
    path = save_arrays(made, tmp_path / "gallery.npz")
    stored = load_arrays(Gallery, path)
    for name in ("x_adv", "robust", "adversarial_predicted", "clean_confidence"):
        assert np.array_equal(getattr(again, name), getattr(made, name))
        assert np.array_equal(getattr(stored, name), getattr(made, name))
    with np.load(path) as file:
        arrays = dict(file)
    del arrays["group"]  # an earlier version had none
    np.savez(path, **arrays)
    assert len(load_arrays(Gallery, path).group) == 0
    del arrays["robust"]
    np.savez(path, **arrays)
    with pytest.raises(RattleError, match="robust"):
        load_arrays(Gallery, path)


def test_two_runs_get_landscapes_over_one_plane_with_pictures_and_numbers(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    pictures = compute_landscapes([run, other], TINY)
    assert sorted(path.suffix for path in pictures) == [".png"] * 3 + [".svg"] * 3
    planes = [load_arrays(InputPlane, folder / "results" / "landscape-plane.npz") for folder in (run, other)]
    assert np.array_equal(planes[0].gradient, planes[1].gradient)
    assert np.array_equal(planes[0].rademacher, planes[1].rademacher)
    surface = load_arrays(InputSurface, other / "results" / "landscape-input.npz")
    assert surface.loss.shape == (1, 5, 5)
    assert load_arrays(WeightSurface, run / "results" / "landscape-weight-2d.npz").clean.shape == (3, 3)
    assert (other / "results" / "landscape-input.png").is_file()
    flat = json.loads((run / "results" / "flatness.json").read_text())
    assert flat["n"] == 8
    assert flat["noise_rise_error"] >= 0


@pytest.mark.usefixtures("few_images")
def test_a_report_keeps_the_resolution_of_a_landscape_that_was_drawn(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine, other = (Path(shutil.copytree(run, tmp_path / name)) for name in ("fine", "other"))
    compute_landscapes([fine], TINY)
    coarse, used = replace(TINY, surface_attacked=False, seed=3), []

    def record(runs: object, config: LandscapeConfig, *rest: object) -> None:
        used.append(config)

    monkeypatch.setattr("rattle.analysis.prepare.store_landscapes", record)
    monkeypatch.setattr("rattle.analysis.prepare.draw", lambda *_: [])
    prepare([fine, other], coarse)
    prepare([other], coarse)
    assert used == [LandscapeConfig(seed=3), coarse]


@pytest.mark.usefixtures("few_images")
def test_what_is_stored_and_fresh_is_not_computed_again(run: Path) -> None:
    written = prepare([run], TINY)
    assert [path.name for path in written] == ["gallery.npz", "landscape-input.npz"]
    assert prepare([run], TINY) == []
    flat = json.loads((run / "results" / "flatness.json").read_text())
    (run / "results" / "flatness.json").write_text(json.dumps(flat | {"step": 1}))
    assert [path.name for path in prepare([run], TINY)] == ["landscape-input.npz"]


def test_landscapes_refuse_what_cannot_be_compared(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="there is no run folder"):
        compute_landscapes([tmp_path / "nowhere"], TINY)
    for wrong in ({"points": 4}, {"images": 0}):
        with pytest.raises(RattleError, match=next(iter(wrong))):
            replace(TINY, **wrong)


def test_the_commands_work_from_the_command_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--images 1 --points 3 --weight-images 4 --line-points 3 --surface-points 3 --iterations 1 --draws 2"
    assert cli.main(["landscape", str(run), *small.split()]) == 0
    said = capsys.readouterr()
    assert "local Lipschitz" in said.out
    assert cli.main(["report", str(run), "--no-compute"]) == 0
    assert str(run / "report.html") in capsys.readouterr().out
    assert not (run / "results" / "gallery.npz").exists()
    assert cli.main(["report", str(run.parent / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    assert cli.main(["report", str(run)]) == 0  # of checkpoints that cannot be read nothing is computed
    assert "not computed for" in capsys.readouterr().err


VIEW = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.conv, self.head = nn.Conv2d(channels, 4, 3, padding=1), nn.Linear(256, classes)

    def forward(self, x):
        return self.head(self.conv(x).relu().view(len(x), -1))
"""


@pytest.mark.parametrize("channels", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_network_that_flattens_by_view_is_analysed_beside_one_that_does_not(channels: int, here: Path) -> None:
    Path("view.py").write_text(VIEW)
    x, y = np.random.default_rng(0).integers(0, 256, (60, 8, 8, channels), dtype=np.uint8), np.arange(60) % 3
    np.savez("my.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    words = ["train", "custom", "--data.name", "my.npz", "--method", "trades-2nd", "--epsilon", "0.03", "--epochs", "1"]
    for out, model in (("runs/view", ["view.py:Net"]), ("runs/cnn", ["cnn", "--width", "4"])):
        assert cli.main([*words, "--out", out, "--model", *model]) == 0
    assert len(gallery(open_checkpoint("runs/view", trust_code=True), max_images=20).y) == 20
    for runs in (["runs/view", "runs/cnn"], ["runs/cnn", "runs/view"]):  # the first one's gradient is everybody's
        assert len(store_landscapes([open_trained(run, trust_code=True) for run in runs], TINY, NullConsole())) == 2
        attacks = ["--attacks", "pgd2", "apgd-ce", "--n", "8", "--trust-code"]
        assert cli.main(["transfer", "--from", runs[0], "--to", runs[1], *attacks]) == 0
    words = ["--n", "6", "--draws", "1", "--sigmas", "0.01", "0.1", "--trust-code"]
    assert cli.main(["fidelity", "runs/view", *words]) == 0
