"""Adversarial examples made on one model and tried on another."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.attacks import PGD
from rattle.attacks.registry import get_attack
from rattle.attacks.transfer import Transfer
from rattle.evaluation.evaluate import evaluate
from rattle.runs import checkpoint
from rattle.runs.progress import Interrupted
from rattle.threat import Threat
from support.command import Command
from support.tiny_runs import RECIPE, digits, linear, save_run, small_cnn

THREAT = Threat(epsilon=0.1)


class Unasked(nn.Module):
    """A model that must not be asked while it is attacked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("asked")


def test_the_surrogate_is_attacked_and_the_target_never_asked() -> None:
    _, _, x, y = digits()
    x, y = x[:5] / 255, y[:5]
    attack = PGD(threat=THREAT, steps=2)
    moved = Transfer(attack=attack, surrogate=linear())(Unasked(), x, y, generator=torch.Generator().manual_seed(0))
    assert torch.equal(moved, attack(linear(), x, y, generator=torch.Generator().manual_seed(0)))


def test_a_surrogate_that_is_the_target_gives_the_white_box_flags() -> None:
    _, _, x, y = digits()
    model, attack = small_cnn(), get_attack("pgd5", THREAT)
    attacks = {
        "white": attack,
        "itself": Transfer(attack=attack, surrogate=model),
        "other": Transfer(attack=attack, surrogate=small_cnn(1)),
    }
    result = evaluate(model, x[:60], y[:60], attacks)
    flags = {name: attack.flags for name, attack in result.attacks.items()}
    assert flags["white"] == flags["itself"]
    assert sum(flags["white"]) < sum(flags["other"]) <= sum(result.clean)


def test_an_evaluation_with_another_surrogate_starts_afresh(tmp_path: Path) -> None:
    _, _, x, y = digits()
    attacks = [{"t": Transfer(attack=get_attack("pgd3", THREAT), surrogate=small_cnn(seed))} for seed in (1, 2)]
    whole = [evaluate(linear(), x[:60], y[:60], each).attacks["t"].flags for each in attacks]
    with pytest.raises(Interrupted):
        evaluate(linear(), x[:60], y[:60], attacks[0], out=tmp_path, stop=lambda: True)
    assert evaluate(linear(), x[:60], y[:60], attacks[1], out=tmp_path).attacks["t"].flags == whole[1] != whole[0]


def test_the_command_says_what_it_was_made_on(tmp_path: Path, command: Command) -> None:
    target, other = save_run(tmp_path / "a"), save_run(tmp_path / "b", seed=1)
    words = ["--attacks", "pgd3", "cw3", "--n", "40", "--threat.epsilon", "0.1"]
    out = command("transfer", "--from", str(other), "--to", str(target), *words)
    assert "transfer-pgd3" in out
    assert f"made on {RECIPE.name}" in out
    assert {p.name for p in (target / "results").iterdir()} == {"transfer-pgd3.json", "transfer-cw3.json"}
    assert not (other / "results").exists()
    stored = json.loads((target / "results" / "transfer-pgd3.json").read_text())
    assert stored["surrogate"] == str(other / "checkpoints" / "best.safetensors")
    settings = stored["attacks"]["transfer-pgd3"]["settings"]
    assert settings["kind"] == "Transfer"
    assert settings["attack"]["steps"] == 3
    said = command("transfer", "--from", str(target), "--to", str(target), *words, "--json")
    itself = json.loads(said)["attacks"]["transfer-pgd3"]
    assert json.loads(command("evaluate", str(target), *words, "--json"))["attacks"]["pgd3"]["flags"] == itself["flags"]
    assert itself["robust_accuracy"] < stored["attacks"]["transfer-pgd3"]["robust_accuracy"]


def test_models_of_other_images_are_refused(tmp_path: Path, command: Command) -> None:
    run = save_run(tmp_path / "run")
    model = small_cnn()
    classes = tuple("abcdefghij")
    path = tmp_path / "other.safetensors"
    checkpoint.write_checkpoint(path, recipe=RECIPE, classes=classes, shape=(1, 8, 8), progress={}, model=model)
    said = command.refused("transfer", "--from", str(path), "--to", str(run))
    assert "were not trained on the same kind of images and classes" in said
    assert "nowhere" in command.refused("transfer", "--from", "nowhere", "--to", str(run))
