"""Hardening a trained classifier: in Python and by the command, with a trade-off chosen on held-out images."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rattle
from rattle.attacks import PGD
from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.evaluation.results import load_results
from rattle.inputs import to_float
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import SGD, AdamW
from rattle.training.harden import Hardened, choose_recipe
from support.tiny_runs import digits, linear, small_cnn

NET = "from torch import nn\ndef build(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"


def hardened(out: Path, module: nn.Module | None = None, **settings: Any) -> Hardened:
    x, y, x_test, y_test = digits()
    how: dict[str, Any] = {
        "epsilon": 0.1,
        "out": out,
        "epochs": 2,
        "test": (x_test, y_test),
        "n": 100,
        "threads": 1,
        "log": "none",
    } | settings
    if module is None:
        module = deepcopy(small_cnn())
    return rattle.harden(module, (x[:400], y[:400]), **how)


def test_a_trained_module_resists_more_and_keeps_its_accuracy(tmp_path: Path) -> None:
    result = hardened(
        tmp_path / "run",
        clean_drop=10.0,
        epochs=4,
        attack=PGD(threat=rattle.Threat(epsilon=0.1), steps=2, step_size=0.06, loss="kl"),
    )
    assert result.after.robust_accuracy > result.before.robust_accuracy + 0.1
    assert str(result).splitlines()[-1].startswith("hardened: robust accuracy +")
    assert (result.before.n, result.after.n) == (100, 100)
    module = rattle.load(tmp_path / "run", model=deepcopy(small_cnn()))
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in result.model.state_dict().items())
    before, after = (load_results(tmp_path / "run" / part)[0]["pgd20"] for part in ("before", "results"))
    assert before.images == after.images


def test_weaker_trade_offs_are_tried_until_enough_clean_accuracy_is_kept(tmp_path: Path) -> None:
    result = hardened(tmp_path / "run", deepcopy(linear()), clean_drop=-100.0, epochs=1)
    assert list(result.tried) == [(0.01, 6.0), (0.01, 2.0), (0.01, 0.6), (0.01, 0.2)]
    assert resolve(str(tmp_path / "run")).objective.inv_lambda == 0.2
    assert str(result).splitlines()[-1].startswith(("WORSE", "MORE LOST"))
    with pytest.raises(RattleError, match=r"holds a run already: `rattle train .*run --resume` continues"):
        hardened(tmp_path / "run")
    assert repr(result).startswith(f"Hardened({result.verdict}")
    assert "before, %" in result._repr_html_()
    falling = replace(result, tried={(0.01, 6.0): (0.5, 0.3), (0.01, 2.0): (0.6, 0.2)})
    assert "learning rate" not in str(falling)
    rising = replace(result, tried={(0.01, 6.0): (0.5, 0.1), (0.01, 2.0): (0.6, 0.2)})
    assert "take more epochs, or a larger learning rate than 0.01 (lr)" in str(rising)


def test_a_first_try_that_learns_too_little_is_made_again_at_ten_times_the_rate(tmp_path: Path) -> None:
    hard: dict[str, Any] = {"epsilon": 0.3, "epochs": 1, "clean_drop": 100.0}
    result = hardened(tmp_path / "run", **hard)
    (slow, first), (fast, second) = result.tried.items()
    assert (slow, fast) == ((0.01, 6.0), (0.1, 6.0))
    assert first[1] < 0.15
    assert resolve(str(tmp_path / "run")).optimizer.lr == 0.1
    shown = str(result).splitlines()
    assert shown[5].endswith("at 1/lambda 6, lr 0.01: learns too little")
    assert shown[6] == f"  clean {100 * second[0]:.1f}  robust {100 * second[1]:.1f}  at 1/lambda 6, lr 0.1"
    for given in ({"lr": 0.01}, {"optimizer": SGD(lr=0.01)}):
        assert hardened(tmp_path / "given", overwrite=True, **hard, **given).tried == {slow: first}


def test_a_start_near_chance_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(RattleError, match="near chance"):
        hardened(tmp_path / "run", nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert not (tmp_path / "run").exists()


def test_the_command_takes_weights_whose_training_normalised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y, x_test, y_test = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):  # normalised as a transform does it, outside the network
        optimizer.zero_grad()
        F.cross_entropy(net((to_float(x) - 0.3) / 0.4), y).backward()
        optimizer.step()
    torch.save(net.state_dict(), "w.pt")
    Path("net.py").write_text(NET)
    parts = {"x_train": x[:400], "y_train": y[:400], "x_test": x_test[:100], "y_test": y_test[:100]}
    np.savez("digits.npz", **{name: value.numpy() for name, value in parts.items()})
    command = (
        "harden --model net.py:build --weights w.pt --mean 0.3 --std 0.4 --data digits.npz --epsilon 0.1 --epochs 2"
    )
    assert main([*command.split(), "--clean-drop", "5", "--out", "run"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].startswith("hardened: ")
    recipe = resolve("run")
    assert (recipe.normalise, recipe.init, recipe.model) == ((0.3, 0.4), "w.pt", "net.py:build")
    before, after = (float(word) for word in printed.splitlines()[1].split()[1::3])
    assert before > 85
    assert main(["evaluate", "run", "--attacks", "pgd20", "--trust-code"]) == 0
    assert f"{after} [" in capsys.readouterr().out


def test_transformers_get_adamw_and_few_images_small_batches() -> None:
    images = rattle.Recipe().data.load()
    module = nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))
    recipe = choose_recipe(module, images, "trades-awp")
    assert recipe.optimizer == AdamW(lr=1e-4)
    assert choose_recipe(module, images, "trades", lr=1e-3).optimizer == AdamW(lr=1e-3)
    with pytest.raises(RattleError, match=r"optimizer\.lr"):
        choose_recipe(module, images, "trades", lr=0)
    assert (recipe.batch_size, recipe.epochs) == (32, 14)
    with pytest.raises(RattleError, match="trade-off"):
        choose_recipe(module, images, "at")
