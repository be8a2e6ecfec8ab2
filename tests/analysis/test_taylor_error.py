"""The diagnostic of the expansion, on models whose expansion is known."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from rattle.analysis.taylor_error import remainders
from rattle.cli.main import main
from rattle.errors import RattleError


class Squares(nn.Module):
    """g(w) = (x . w)^2 for each column of w: exactly second order in w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.w) ** 2


def test_an_order_is_exact_for_a_model_of_that_order_and_falls_in_proportion_for_a_smooth_one() -> None:
    x = torch.rand(5, 1, 2, 2)
    for row in remainders(Squares(), x, sigmas=(1e-3, 0.1, 1.0)):
        assert row["second"] < 1e-9
        assert row["first"] > row["second"]
    for row in remainders(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), x, sigmas=(1e-3, 1.0)):
        assert row["first"] < 1e-9
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    small, large = remainders(model, x, sigmas=(1e-4, 1e-3), draws=2)
    assert large["first"] / small["first"] == pytest.approx(10, rel=0.1)
    assert large["second"] / small["second"] == pytest.approx(100, rel=0.3)
    with pytest.raises(RattleError, match="sigma > 0"):
        remainders(model, x, sigmas=(0.0,))


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    remainders(model, torch.rand(4, 1, 2, 2), sigmas=(0.1,), draws=1, batch_statistics=True)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert next(model.parameters()).dtype == torch.float32


def test_the_command_writes_a_table_json_and_plots(tmp_path, capsys) -> None:
    run = tmp_path / "run"
    short = ["--epochs", "1", "--width", "4", "--data.train-size", "130", "--attack.steps", "1", "--seed", "1"]
    assert main(["train", "digits-linf-cnn-trades-2nd", *short, "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["fidelity", str(run), "--n", "8", "--draws", "1", "--sigmas", "1e-4", "1/100", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((run / "results" / "fidelity.json").read_text())
    assert [row["sigma"] for row in printed["remainders"]["adversarial"]] == [1e-4, 1e-2]
    assert [row["name"] for row in printed["terms"]] == ["first", "second", "all they add"]
    assert f"{printed['terms'][-1]['lasts']:.2g}" in printed["answer"]
    assert (run / "results" / "fidelity.png").stat().st_size > 1000
    assert (run / "results" / "fidelity.svg").exists()
    assert main(["fidelity", str(run), "--n", "8", "--draws", "1", "--sigmas", "0.01"]) == 0  # one, the run's own
    assert "digits-linf-cnn-trades-2nd, seed 1: remainders" in capsys.readouterr().out
