"""The weights of the Taylor terms, in metrics.jsonl."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.objectives import Taylor, Trades
from rattle.recipes.catalog import get_recipe
from rattle.training.loop import fit
from rattle.training.metrics import term_gradients
from rattle.weights import Noise
from support.training import Listening

TINY = replace(
    get_recipe("digits-linf-cnn-trades-2nd"),
    epochs=2,
    width=4,
    attack=replace(get_recipe("digits-linf-cnn-trades-2nd").attack, steps=1),
    data=replace(get_recipe("digits-linf-cnn-trades-2nd").data, train_size=256),
)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_gradient_of_each_term_by_hand() -> None:
    model = nn.Linear(2, 1, bias=False)
    value = model(torch.tensor([[3.0, 4.0]])).sum()
    found = term_gradients(model, {"zeroth": value, "first": 0.5 * value})
    assert found["zeroth"].tolist() == [3.0, 4.0]
    assert found["first"].tolist() == [1.5, 2.0]
    value.backward()  # the graph is still there


def test_the_weights_of_the_terms_are_recorded_and_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(TINY, tmp_path / "with", log="none")
    lines = metrics(tmp_path / "with")
    assert all(line["first_over_zeroth"] > 0 for line in lines)
    assert lines[0]["second_over_zeroth"] != lines[1]["second_over_zeroth"]
    monkeypatch.setattr("rattle.training.minibatch.term_observer", lambda state: None)
    fit(TINY, tmp_path / "without", log="none")
    for line, plain in zip(lines, metrics(tmp_path / "without"), strict=True):
        assert plain == {name: value for name, value in line.items() if not name.endswith("_over_zeroth")}


def test_the_weight_of_exact_grows_with_the_square_of_sigma(tmp_path: Path) -> None:
    first = []
    for sigma in (1e-3, 1e-2):
        exact = Trades(taylor=Taylor(order=1, mode="exact"))
        recipe = replace(TINY, epochs=1, objective=exact, noise=Noise(sigma=0, outer=sigma))
        first.append(metrics(fit(recipe, tmp_path / f"{sigma}", log="none").folder)[0]["first_over_zeroth"])
    assert first[1] / first[0] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("taylor", "sigma", "said"),
    [
        (Taylor(order=1, mode="exact"), 1e-3, "are negligible"),
        (Taylor(order=2, mode="exact", eta=1000.0), 0.1, "dominate"),
        (Taylor(order=2), 0.01, None),
    ],
)
def test_a_run_remarks_once_that_its_terms_are_negligible_or_dominate(
    taylor: Taylor, sigma: float, said: str | None, tmp_path: Path
) -> None:
    console, noise = Listening(), Noise(sigma=0, outer=sigma) if taylor.mode == "exact" else Noise(sigma=sigma)
    recipe = replace(TINY, epochs=3, objective=Trades(taylor=taylor), noise=noise)
    fit(recipe, tmp_path / "run", log="none", console=console)
    found = [line for line in console.lines if line.startswith("the Taylor terms")]
    assert len(found) == (said is not None)
    assert all(f"the Taylor terms {said} (" in line for line in found)


def test_without_taylor_terms_there_is_nothing_to_weigh(tmp_path: Path) -> None:
    run = fit(replace(TINY, epochs=1, objective=Trades(), noise=Noise(sigma=0)), tmp_path / "run", log="none")
    assert not [name for name in metrics(run.folder)[0] if name.endswith("_over_zeroth")]
