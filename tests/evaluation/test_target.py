"""Anything can be evaluated: a run, a checkpoint, a file of the user's with weights as other code saves them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rattle.attacks import RayS
from rattle.attacks.registry import ATTACKS
from rattle.models.registry import create_model
from support.command import Command
from support.tiny_runs import digits, linear, save_files, save_run, small_cnn


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with net.py, w.pt and test.npz."""
    save_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(command: Command, *words: str) -> dict:
    return json.loads(command("evaluate", *words, "--json"))


MINE = ["--model", "net.py:Net", "--weights", "w.pt", "--data", "test.npz"]


def test_autoattack_on_a_model_weights_and_images_of_ones_own(files: Path, command: Command) -> None:
    result = said(command, *MINE, "--attacks", "autoattack", "--threat.epsilon", "0.3", "--n", "20")
    autoattack = result["attacks"]["autoattack"]
    assert result["n"] == 20
    assert autoattack["settings"]["threat"] == {"norm": "linf", "epsilon": 0.3}
    assert list(autoattack["parts"]) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert result["clean_accuracy"] > 0.7 > autoattack["robust_accuracy"]
    assert result == json.loads((files / "w.pt-results" / "autoattack.json").read_text())


def test_autoattack_and_rays_on_a_run(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS.objects, "rays", lambda threat: RayS(threat=threat, queries=20))
    run = save_run(tmp_path / "run")
    words = ["--attacks", "apgd-ce+t", "rays", "--n", "2", "--threat.epsilon", "0.02"]
    result = said(command, str(run), *words)
    rays = result["attacks"]["rays"]
    assert len(rays["distances"]) == 2
    assert rays["adbd"] == pytest.approx(sum(rays["distances"]) / 2)
    assert rays["flags"] == [int(d > 0.02) for d in rays["distances"]]
    assert set(result["attacks"]["apgd-ce+t"]["parts"]) == {"apgd-ce", "apgd-t"}
    out = command("evaluate", str(run), *words)
    assert "rays: ADBD 0." in out
    assert "apgd-ce+t, part by part" in out


CNN = ["--model", "cnn", "--width", "4", "--attacks", "fgsm", "--weights"]


def right(model: nn.Module, n: int = 60, scale: float = 1.0) -> list[int]:
    """A flag for each of the first n test images, scaled."""
    _, _, x, y = digits()
    with torch.no_grad():
        return (model(scale * x[:n] / 255).argmax(1) == y[:n]).int().tolist()


def test_weights_from_elsewhere_open_as_they_are(files: Path, command: Command) -> None:
    state = {f"module.{k.replace('head.', 'fc.')}": v for k, v in small_cnn().state_dict().items()}
    torch.save({"model": state, "optimizer": {}}, files / "theirs.pt")
    result = said(command, *CNN, "theirs.pt", "--data", "digits", "--n", "50", "--first")
    assert result["clean_flags"] == right(small_cnn(), 50)
    assert result["checkpoint"] == "theirs.pt"
    assert (files / "theirs.pt-results" / "fgsm.json").is_file()


def test_a_checkpoint_of_a_run_is_a_file_of_weights_too(files: Path, command: Command) -> None:
    path = str(save_run(files / "run") / "checkpoints" / "best.safetensors")
    words = ["--n", "30", "--threat.epsilon", "0.1"]
    by_name = said(command, *CNN, path, "--data", "digits", *words)
    assert by_name["attacks"]["fgsm"]["flags"] == said(command, path, *CNN[4:6], *words)["attacks"]["fgsm"]["flags"]


def test_normalisation_is_given_by_hand_or_by_the_file(files: Path, command: Command) -> None:
    words = [*CNN, "plain.pt", "--data", "test.npz"]
    state = small_cnn().state_dict()
    torch.save(state, files / "plain.pt")
    as_is = said(command, *words)
    same = said(command, *words, "--mean", "0", "--std", "1")
    other = said(command, *words, "--mean", "0.9", "--std", "0.1")
    assert as_is["clean_flags"] == same["clean_flags"] != other["clean_flags"]
    assert "--mean and --std go together" in command.refused("evaluate", *words, "--mean", "0.5")
    statistics = {"0.mean": torch.zeros(1, 1, 1, 1), "0.std": torch.full((1, 1, 1, 1), 0.5)}
    torch.save(statistics | {f"1.{k}": v for k, v in state.items()}, files / "normalising.pt")
    inside = said(command, *CNN, "normalising.pt", "--data", "test.npz")
    assert inside["clean_flags"] == right(small_cnn(), scale=2.0)
    torch.save(create_model("cnn", classes=10, channels=1, width=4, activation="silu").state_dict(), files / "silu.pt")
    assert said(command, *CNN, "silu.pt", "--data", "test.npz", "--activation", "silu")["n"] == 60


def test_a_run_on_other_images(files: Path, command: Command) -> None:
    run = save_run(files / "run")
    own = said(command, str(run), "--attacks", "fgsm", "--n", "60", "--first")
    other = said(command, str(run), "--attacks", "fgsm", "--data", "test.npz")
    assert other["clean_flags"] == own["clean_flags"]
    assert other["data"] == "test.npz"
    np.savez(files / "colour.npz", x_test=np.zeros((4, 8, 8, 3), np.uint8), y_test=np.arange(4))
    sentence = command.refused("evaluate", str(run), "--attacks", "fgsm", "--data", "colour.npz")
    assert "the model does not take images of shape [3, 8, 8]" in sentence


def test_images_of_fewer_classes_need_the_models_number(files: Path, command: Command) -> None:
    _, _, x, y = digits()
    few = y < 4
    np.savez(files / "few.npz", x_test=x[few].squeeze(1).numpy(), y_test=y[few].numpy())
    words = ["--model", "net.py:Net", "--weights", "w.pt", "--data", "few.npz", "--attacks", "fgsm"]
    assert "the model has 10 outputs, but the data have 4 classes" in command.refused("evaluate", *words)
    expected = [flag for flag, label in zip(right(linear(), len(y)), y, strict=True) if label < 4]
    assert said(command, *words, "--classes", "10")["clean_flags"] == expected
    assert "--classes 3 is fewer than the 4 classes of few.npz" in command.refused("evaluate", *words, "--classes", "3")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give a run or checkpoint, or --model NAME --weights FILE --data NAME"),
        (["--model", "cnn", "--data", "test.npz"], "--model cnn has no trained weights of its own: give them with --w"),
        ([*MINE[:3], "none.pt", *MINE[4:]], "no file of weights at none.pt"),
        ([*MINE[:5], "none.npz"], "there is no .npz file at none.npz"),
        (MINE[:4], "cifar10"),  # what is looked for when no data are named
        (["--model", "net.py:Nett", *MINE[2:]], "unknown function or class of net.py 'Nett'; did you mean 'Net'?"),
        (["--model", "cnn", *MINE[2:]], "w.pt does not fit SmallCNN"),
        ([*MINE, "--width", "3"], "net.py:Net has no keyword 'width', which the recipe sets"),
        ([*MINE, "--threat.norm", "l2", "--attacks", "rays"], "rays searches along rays of signs, for the linf threat"),
        (["run", "--weights", "w.pt"], "--weights belongs to --model; run knows its own"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, files: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RATTLE_DATA", raising=False)
    if words[:1] == ["run"]:
        save_run(files / "run")
    assert sentence in command.refused("evaluate", *words)
    assert not (files / "w.pt-results").exists()


OWN = """
import torch
from torch import nn

def trained():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model.load_state_dict({f"1.{key.rpartition('.')[2]}": value for key, value in torch.load("w.pt").items()})
    return model

def drawn():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_a_network_whose_weights_are_drawn_at_random_is_refused_unless_asked_for(files: Path, command: Command) -> None:
    (files / "own.py").write_text(OWN)
    words = ["--data", "test.npz", "--attacks", "fgsm"]
    sentence = command.refused("evaluate", "--model", "own.py:drawn", *words)
    assert "--model own.py:drawn has no trained weights of its own: give them with --weights FILE" in sentence
    random = said(command, "--model", "own.py:drawn", "--random-weights", *words)
    assert random["clean_accuracy"] < 0.4
    assert said(command, "--model", "own.py:trained", *words)["clean_accuracy"] > 0.7  # loads weights of its own
    assert "give --weights or --random-weights, not both" in command.refused("evaluate", *MINE, "--random-weights")
