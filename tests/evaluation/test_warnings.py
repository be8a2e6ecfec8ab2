"""What makes a robust accuracy unreliable is printed on stderr and stored with it."""

import json
from pathlib import Path

import pytest
import torch

import rattle
from rattle.cli.main import main
from support.tiny_runs import digits, linear, save_files

NETS = """
import torch
from torch import nn

class Soft(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1))

class Noisy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return super().forward(x + 0.3 * torch.randn_like(x))
"""


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        ("Soft", "the model returns probabilities: return the logits before the softmax"),
        ("Noisy", "the model answers at random"),
    ],
)
def test_warnings_are_printed_and_stored(
    net: str, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_files(here)
    (here / "nets.py").write_text(NETS)
    words = ["--model", f"nets.py:{net}", "--weights", "w.pt", "--data", "test.npz", "--attacks", "fgsm", "--json"]
    assert main(["evaluate", *words]) == 0
    said = capsys.readouterr()
    assert f"warning: {sentence}" in said.err
    stored = json.loads((here / "w.pt-results" / "fgsm.json").read_text())
    assert any(line.startswith(sentence) for line in stored["advice"])
    assert json.loads(said.out)["advice"] == stored["advice"]


def test_a_plain_model_gets_no_warnings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_files(here)
    words = ["--model", "net.py:Net", "--weights", "w.pt", "--data", "test.npz", "--attacks", "fgsm", "pgd3"]
    assert main(["evaluate", *words]) == 0
    assert "warning" not in capsys.readouterr().err
    assert json.loads((here / "w.pt-results" / "fgsm.json").read_text())["advice"] == []


def test_shifted_labels_and_accuracy_near_chance_are_warned_of_in_python() -> None:
    x, y, _, _ = digits()
    (shifted,) = rattle.evaluate(linear(), x, (y + 1) % 10, "fgsm", epsilon=0.1, quiet=True).warnings
    assert "most predictions are the label -1" in shifted
    others = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    (chance,) = rattle.evaluate(linear(), x, y[others], "fgsm", epsilon=0.1, quiet=True).warnings
    assert "near chance" in chance
    assert not rattle.evaluate(linear(), x, y, "fgsm", epsilon=0.1, quiet=True).warnings
