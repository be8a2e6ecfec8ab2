"""A submission to RobustBench: whole, equal to what was measured, refused where something is missing."""

from __future__ import annotations

import importlib
import json
import pickle
import re
import shlex
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.cli.main import main
from rattle.data.cifar import CIFAR10
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.models.registry import create_model
from rattle.publish.robustbench import Submission
from rattle.recipes.catalog import get_recipe
from rattle.runs import checkpoint
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.threat import Threat

FIELDS = "link name authors additional_data number_forward_passes dataset venue architecture eps clean_acc reported"
PAPER = {"name": "Jin2023Randomized_WRN", "title": "A title", "link": "https://arxiv.org/abs/0", "authors": "A, B"}
PAPER |= {"venue": "CVPR 2023", "checkpoint": "https://example.org/weights"}


@cache
def images() -> tuple[Tensor, Tensor]:
    """Ten uint8 images of ten colours, and their classes; the last label is wrong."""
    draw = np.random.default_rng(0)
    x = 128 + draw.uniform(-40, 40, (10, 3, 1, 1)) + draw.integers(-4, 5, (10, 3, 32, 32))
    return torch.from_numpy(x.astype(np.uint8)), torch.tensor([*range(9), 0])


@cache
def trained(model: str) -> nn.Module:
    """A network that knows the colours."""
    x = images()[0] / 255
    torch.manual_seed(0)
    net = create_model(model, classes=10, channels=3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(net(x), torch.arange(10)).backward()
        optimizer.step()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # the statistics of one more forward pass
    net(x)
    return net.eval()


def save_run(folder: Path, *, model: str = "wrn10-1", attacked: int | None = None, epsilon: float = 8 / 255) -> Path:
    """A run on files like CIFAR-10's, and the result of a short PGD, under AutoAttack's name, on `attacked` images."""
    x, y = images()
    (folder / CIFAR10.folder).mkdir(parents=True)
    batch = {b"data": x.flatten(1).numpy(), b"labels": y.tolist()}
    names = {b"label_names": [b"%d" % i for i in range(10)]}
    for name in CIFAR10.files:
        raw = pickle.dumps(names if name == CIFAR10.meta else batch, 2)
        (folder / CIFAR10.folder / name).write_bytes(raw)
    named = get_recipe("cifar10-linf-wrn34-10-trades")
    data = Data(name="cifar10", root=str(folder))
    recipe = replace(named, name=f"cifar10-linf-{model}-trades", model=model, data=data)
    run = Run(folder / "run")
    run.folder.mkdir()
    run.recipe.write_text(recipe.to_yaml())
    content = {"recipe": recipe, "classes": tuple("0123456789"), "shape": (3, 32, 32), "progress": {}}
    checkpoint.save(run.checkpoint("best"), **content, model=trained(model))
    attack, few = PGD(threat=Threat(epsilon=epsilon), steps=2, step_size=epsilon / 2), slice(attacked)
    evaluate(trained(model), x[few], y[few], {"autoattack": attack}, out=run.results, save_adversarial=True)
    return run.folder


def export(run: Path, **paper: Any) -> int:
    options = [word for key, value in paper.items() for word in (f"--submission.{key.replace('_', '-')}", str(value))]
    return main(["export", str(run), "--format", "robustbench", *options])


def test_a_submission_is_whole_and_says_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path)
    result = json.loads((run / "results" / "autoattack.json").read_text())
    clean, robust = (f"{100 * result[key]:.2f}" for key in ("clean_accuracy", "robust_accuracy"))
    assert 0 < result["robust_accuracy"] < result["clean_accuracy"]  # else the assertions below could not fail
    assert export(run, **PAPER, reported=51.5) == 0
    out = run / "robustbench"
    assert {file.name for file in out.iterdir()} == {
        "model.py",
        "issue.md",
        *(f"{PAPER['name']}{suffix}" for suffix in (".pt", ".json", "-adversarial.pt")),
    }
    info = json.loads((out / f"{PAPER['name']}.json").read_text())
    assert list(info) == [*FIELDS.split(), "autoattack_acc"]
    assert info["name"] == "A title"
    assert (info["dataset"], info["architecture"], info["eps"]) == ("cifar10", "WideResNet-10-1", "8/255")
    assert (info["clean_acc"], info["autoattack_acc"], info["reported"]) == (clean, robust, "51.50")
    issue = (out / "issue.md").read_text()
    assert "(fill in)" not in issue
    for line in ("Title: [New Model] Jin2023Randomized_WRN", f"- **Robust accuracy**: {robust}", "- **eps**: 8/255"):
        assert line in issue.splitlines()
    assert "- [x] I use an architecture that is included" in issue
    assert "left for you" not in capsys.readouterr().out


def test_the_adversarial_images_are_the_test_set_in_its_order_clean_where_nothing_was_found(tmp_path: Path) -> None:
    run = save_run(tmp_path)
    assert export(run) == 0
    result = json.loads((run / "results" / "autoattack.json").read_text())
    (x, y), x_adv = images(), torch.load(run / "robustbench" / "wrn10-1-trades-adversarial.pt", weights_only=True)
    assert (x_adv.dtype, x_adv.shape, x_adv.is_contiguous()) == (torch.float32, (10, 3, 32, 32), True)
    moved = (x_adv - x / 255).abs().amax((1, 2, 3))
    flags, clean = result["attacks"]["autoattack"]["flags"], result["clean_flags"]
    assert (moved > 0).int().tolist() == [c - f for c, f in zip(clean, flags, strict=True)]
    assert float(moved.max()) <= 8 / 255 + 1e-6
    assert (load(run)(x_adv).argmax(1) == y).int().tolist() == flags


def test_blanks_are_listed_and_the_recipe_gives_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path, model="cnn-slim", epsilon=4 / 255)
    assert export(run, title="A title", venue="CVPR 2023") == 0
    printed = capsys.readouterr().out
    assert "left for you to fill in, or give --submission.name ...: name, link, authors, checkpoint\n" in printed
    assert (
        "AutoAttack ran at linf 4/255 and the leaderboard is at 8/255: evaluate with --threat.epsilon 8/255" in printed
    )
    info = json.loads((run / "robustbench" / "cnn-slim-trades.json").read_text())
    assert (info["link"], info["venue"], info["reported"]) == (None, "CVPR 2023", info["autoattack_acc"])
    text = (run / "robustbench" / "model.py").read_text()
    assert "def cnn_slim_trades_cifar10_linf(pretrained=False" in text
    assert "class SmallCNN(Network)" in text
    assert "- **Paper URL**: (fill in)" in (run / "robustbench" / "issue.md").read_text()


def test_what_is_missing_is_refused_with_the_command_that_makes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path, attacked=4)
    command = f"run `rattle evaluate {run} --attacks autoattack --save-adversarial`"
    assert export(run) == 2
    assert f"AutoAttack ran on 4 images and RobustBench asks for all 10: {command}" in capsys.readouterr().err
    (run / "results" / "autoattack-adversarial.npz").unlink()
    assert export(run) == 2
    assert f"autoattack-adversarial.npz is not there: {command}" in capsys.readouterr().err
    (run / "results" / "autoattack.json").unlink()
    assert export(run) == 2
    assert f"autoattack.json is not there: {command}" in capsys.readouterr().err
    assert not (run / "robustbench").exists()


def test_images_that_do_not_break_this_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path)
    path = run / "checkpoints" / "best.safetensors"
    saved, model = checkpoint.read(path), load(run)
    with torch.no_grad():
        model.head.weight.neg_()
    content = {"recipe": saved.recipe, "classes": saved.classes, "shape": saved.shape, "progress": {}}
    checkpoint.save(path, **content, model=model)
    assert export(run) == 2
    assert f"does not hold for {path} and these test images" in capsys.readouterr().err


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path)
    with pytest.raises(RattleError, match="begins with a letter and goes on with letters, digits"):
        Submission(name="../evil")
    with pytest.raises(RattleError, match="is a percentage, from 0 to 100; got 151"):
        Submission(reported=151)
    assert main(["export", str(run), "--submission.title", "A title"]) == 2
    assert "belong to --format robustbench" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["export", str(run), "--format", "robustbench", "--out", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err


def load_by_robustbench(folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, nn.Module]:
    """A run exported as Made2026Up-1, and what RobustBench finds by that name once model.py is imported."""
    with warnings.catch_warnings(action="ignore"):
        robustbench: Any = pytest.importorskip("robustbench")
    run = save_run(folder, model=model)
    assert export(run, name="Made2026Up-1") == 0
    monkeypatch.syspath_prepend(str(run / "robustbench"))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    with warnings.catch_warnings(action="ignore"):
        importlib.import_module("model")
        return run, robustbench.load_model("Made2026Up-1", dataset="cifar10", threat_model="Linf")


@pytest.mark.parametrize("model", ["wrn10-1", "wrn10-1-dm", "cnn-slim"])
def test_robustbench_finds_the_model(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, net = load_by_robustbench(tmp_path, model, monkeypatch)
    x = images()[0] / 255
    torch.testing.assert_close(net(x), load(run)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_robustbench_s_benchmark_measures_what_the_submission_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, net = load_by_robustbench(tmp_path, "cnn-slim", monkeypatch)
    x, y = images()[0] / 255, images()[1]
    data: Any = importlib.import_module("robustbench.data")
    loaders, cifar10 = data._clean_dataset_loaders, data.BenchmarkDataset.cifar_10
    monkeypatch.setitem(loaders, cifar10, lambda n, *_: (x[:n], y[:n]))  # its own checks the true files' checksums
    benchmark = importlib.import_module("robustbench.eval").benchmark
    assert main(["evaluate", str(run), "--attacks", "autoattack", "--save-adversarial"]) == 0
    assert export(run, name="Made2026Up-1") == 0
    with warnings.catch_warnings(action="ignore"):
        measured = benchmark(net, 10, "cifar10", threat_model="Linf", eps=8 / 255)
    info = json.loads((run / "robustbench" / "Made2026Up-1.json").read_text())
    assert [f"{100 * accuracy:.2f}" for accuracy in measured] == [info["clean_acc"], info["autoattack_acc"]]


@pytest.mark.slow
def test_the_guide_s_commands_and_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "publishing-robustbench.md").read_text(encoding="utf-8")
    shell, python = (re.findall(rf"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("bash", "python"))
    monkeypatch.chdir(tmp_path)
    for command in "".join(shell).replace("\\\n", "").splitlines():
        words = shlex.split(command, comments=True)[1:]
        shorter = ["--epochs", "1", "--width", "4", "--data.train-size", "130"]
        assert main([*words, *(shorter if words[0] == "train" else [])]) == 0
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    with warnings.catch_warnings(action="ignore"):  # of timm, where it is installed
        exec(python[0], names := {})
        assert names["logits"].shape == (2, 10)
        pytest.importorskip("timm")
        exec(python[1], names)
    assert torch.equal(names["net"](names["x"]), names["logits"])
