"""Robust accuracy against epsilon never rises, by construction."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rattle.attacks.registry import get_attack
from rattle.evaluation.curve import curve
from rattle.evaluation.evaluate import evaluate
from rattle.threat import Threat
from support.command import Command
from support.tiny_runs import digits, linear, save_run

EPSILONS = (0.1, 0.0, 0.05, 0.2)


@dataclass(frozen=True)
class Whimsical:
    """Gets at an image only while the ball is small: on its own, robust accuracy would rise with epsilon."""

    threat: Threat

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
        attack = get_attack("pgd5", self.threat)
        return attack(model, x, y, generator=torch.Generator().manual_seed(0)) if self.threat.epsilon < 0.15 else x


def test_a_curve_never_rises_and_begins_with_the_clean_accuracy() -> None:
    _, _, x, y = digits()
    x, y = x[:60], y[:60]
    points = curve(linear(), x, y, {e: Whimsical(Threat(epsilon=e)) for e in EPSILONS})
    assert list(points) == sorted(EPSILONS)
    flags = torch.tensor(list(points.values()))
    assert points[0] == evaluate(linear(), x, y, {}).clean
    assert bool((flags[1:] <= flags[:-1]).all())
    assert flags[0].sum() > flags[1].sum() > flags[2].sum() == flags[3].sum()


def test_the_command_stores_a_curve_and_leaves_nothing_else(tmp_path: Path, command: Command) -> None:
    run = save_run(tmp_path / "run")
    words = ["evaluate", str(run), "--attacks", "pgd3", "cw2", "--n", "40", "--epsilons", "16/255", "0", "8/255"]
    out = command(*words)
    assert "pgd3 against epsilon (linf)" in out
    assert "8/255" in out
    files = {p.name for p in (run / "results").iterdir()}
    assert files == {"pgd3.json", "cw2.json", "pgd3-curve.json"}
    stored = json.loads((run / "results" / "pgd3-curve.json").read_text())["curve"]
    assert stored["attack"] == "pgd3"
    assert [p["epsilon"] for p in stored["points"]] == [0, 8 / 255, 16 / 255]
    accuracies = [p["robust_accuracy"] for p in stored["points"]]
    assert accuracies == sorted(accuracies, reverse=True)
    plain = json.loads((run / "results" / "pgd3.json").read_text())
    assert stored["points"][0]["flags"] == plain["clean_flags"]
    result = json.loads(command(*words, "--json", "--norm", "l2", "--epsilon", "1/255"))
    assert result["attacks"]["pgd3"]["settings"]["threat"] == {"norm": "l2", "epsilon": 1 / 255}
    assert json.loads(command(*words, "--json"))["curve"] == stored
