"""The correlations of Appendix C, where they are known by other means; the command, on runs that kept epochs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rattle.analysis.loss_gap import kept_checkpoints, losses_of, over_training, split_of
from rattle.attacks import PGD
from rattle.data import Images
from rattle.runs.paths import Run
from rattle.threat import Threat
from rattle.training.loop import fit
from rattle.weights import Noise
from support.command import Command
from support.tiny_runs import RECIPE, save_run

ATTACK = PGD(threat=Threat(epsilon=0.1), steps=2, step_size=0.05, loss="ce", start="none")


def linear(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes)).eval()


def images(n: int, classes: int) -> Images:
    return Images((torch.rand(n, 1, 4, 4) * 255).to(torch.uint8), torch.arange(n) % classes)


def test_the_losses_are_those_of_the_formula_at_w_plus_u() -> None:
    model, some, noise = linear(3), images(9, 3), Noise(sigma=0.1)
    found = losses_of(model, some, attack=ATTACK, noise=noise, draws=2, seed=5, batch=4)
    expected = torch.zeros(9, 4, dtype=torch.float64)
    for seed in (5, 6):
        u = noise(model, generator=torch.Generator().manual_seed(seed))
        moved = linear(3)
        moved.load_state_dict({name: value + u.get(name, 0) for name, value in model.state_dict().items()})
        x = some.x.float() / 255
        x_adv = ATTACK(moved, x, some.y, generator=None)
        p, q = (F.softmax(moved(each).double(), 1) for each in (x, x_adv))
        for i, y in enumerate(some.y.tolist()):
            clean, adversarial = -p[i, y].log(), -q[i, y].log()
            divergence = sum(p[i, k] * (p[i, k] / q[i, k]).log() for k in range(3))
            expected[i] += torch.stack([clean, adversarial, torch.as_tensor(divergence), (clean - adversarial).abs()])
    assert torch.allclose(found, expected.detach() / 2, atol=1e-6)


def test_with_two_classes_and_equal_confidence_the_ranks_agree_entirely() -> None:
    p = torch.full((30,), 0.9, dtype=torch.float64)
    q = torch.linspace(0.1, 0.8, 30, dtype=torch.float64)
    divergence = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    gap = (p / q).log().abs()
    losses = torch.stack([-p.log(), -q.log(), divergence, gap], 1)
    split = split_of(losses)
    assert split["rank"] == pytest.approx(1)
    assert split["gap"] == pytest.approx(float(gap.mean()))
    assert split["low"] <= split["rank"] <= split["high"] + 1e-12
    for value in (1.0, float("nan")):  # nothing changes, or a loss diverged
        none = split_of(torch.full_like(losses, value))
        assert (none["rank"], none["low"], none["high"]) == (None, None, None)


def test_over_training_the_excess_of_a_loss_is_test_less_training() -> None:
    found = []
    for e in range(1, 7):
        train = {"kl": e, "gap": 2 * e, "clean": 1, "adversarial": 0}
        found.append({"epoch": e, "train": train, "test": {"clean": 1 - e, "adversarial": e * e}})
    ranks = {name: values["rank"] for name, values in over_training(found).items()}
    assert ranks == pytest.approx({"gap": 1, "clean_excess": -1, "adversarial_excess": 1})
    assert over_training(found[:3])["gap"]["rank"] is None


@pytest.mark.slow
def test_the_command_measures_every_kept_checkpoint_of_runs(tmp_path: Path, command: Command) -> None:
    recipe = replace(RECIPE, epochs=4, batch_size=32, keep_checkpoints="all")
    recipe = replace(recipe, data=replace(recipe.data, train_size=64), attack=replace(recipe.attack, steps=1))
    names = [str(fit(replace(recipe, seed=seed), tmp_path / f"run-{seed}").folder) for seed in (0, 1)]
    printed = json.loads(command("gap", *names, "--n", "20", "--draws", "2", "--json"))
    assert list(printed) == ["run-0", "run-1"]
    for name, label in zip(names, printed, strict=True):
        assert printed[label] == json.loads(Run(Path(name)).loss_gap.read_text())
        assert [moment["epoch"] for moment in printed[label]["checkpoints"]] == [1, 2, 3, 4]
        assert Run(Path(name)).loss_gap.with_suffix(".png").stat().st_size > 1000
    assert printed["run-0"]["checkpoints"] != printed["run-1"]["checkpoints"]
    said = command("gap", names[0], "--n", "20")
    assert "over test images the rank correlation of the KL with the loss gap is" in said


def test_a_run_that_kept_no_epochs_or_too_few_images_is_refused(tmp_path: Path, command: Command) -> None:
    run = save_run(tmp_path / "run")
    for words, fact in (([], "--keep-checkpoints"), (["--n", "3"], "n must be >= 4")):
        assert fact in command.refused("gap", str(run), *words)


def test_epochs_are_in_their_own_order(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.checkpoints.mkdir()
    for epoch in (1000, 999, 2):
        run.checkpoint(f"epoch-{epoch:03d}").touch()
    assert [path.stem for path in kept_checkpoints(run)] == ["epoch-002", "epoch-999", "epoch-1000"]
