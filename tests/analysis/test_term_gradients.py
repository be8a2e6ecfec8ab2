"""What the Taylor terms add to the gradient, on networks and modes where it is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rattle.analysis.term_gradients import (
    WHOLE,
    TermRow,
    agreement,
    lasting_interval,
    measure_terms,
    term_rows,
    terms_answer,
)
from rattle.attacks import PGD
from rattle.data import Images
from rattle.objectives import AT, Taylor, Trades
from rattle.objectives.lbgat import LBGAT
from rattle.recipes.recipe import Recipe
from rattle.threat import Threat
from rattle.weights import Noise

ATTACK = PGD(threat=Threat(epsilon=0.1), steps=2, step_size=0.05, loss="kl", start="gaussian")


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))


def parts(batches: int = 4) -> list[Images]:
    images = (torch.rand(batches, 24, 1, 4, 4) * 255).to(torch.uint8)
    return [Images(x, torch.arange(24) % 4) for x in images]


def rows_of(taylor: Taylor, *, base: type = Trades, **changes) -> dict[str, TermRow]:
    recipe = Recipe(objective=base(taylor=taylor), attack=ATTACK, noise=Noise(sigma=0.01), **changes)
    return {row["name"]: row for row in term_rows(network(), recipe, parts(), seed=0)}


def test_smoothing_is_all_smoothing() -> None:
    rows = rows_of(Taylor(order=2, mode="smoothing"))
    for row in rows.values():
        assert row["to_smoothing"] == pytest.approx(1)
        assert row["own"] < 1e-6
        assert row["lasts"] < 1e-6
    assert rows["first"]["over_zeroth"] == pytest.approx(2 * rows["second"]["over_zeroth"])
    assert rows[WHOLE]["over_zeroth"] == pytest.approx(3 * rows["second"]["over_zeroth"])
    assert terms_answer(rows[WHOLE], 4).startswith("The Taylor terms have no effect of their own")


def test_exact_is_negligible_at_a_small_sigma_and_is_not_smoothing() -> None:
    rows = rows_of(Taylor(order=1, mode="exact"))
    assert rows[WHOLE]["over_zeroth"] < 0.01
    assert rows[WHOLE]["to_smoothing"] < 0.9


@pytest.mark.parametrize("base", [AT, Trades])
def test_head_has_a_row_for_each_order(base: type) -> None:
    assert list(rows_of(Taylor(order=2), base=base)) == ["first", "second", WHOLE]


def test_sampled_adds_a_gradient_without_a_term_of_its_own() -> None:
    rows = rows_of(Taylor(order=1, mode="sampled"), noise_samples=2)
    assert list(rows) == [WHOLE]
    assert rows[WHOLE]["over_zeroth"] > 0


def test_terms_that_need_more_than_a_minibatch_are_not_measured() -> None:
    recipe = Recipe(objective=LBGAT(taylor=Taylor(order=1)), attack=ATTACK)
    found = measure_terms(None, recipe, batches=2, seed=0)  # type: ignore[arg-type]
    assert found["terms"] == []
    assert "LBGAT" in found["answer"]


def test_the_agreement_of_directions_by_hand() -> None:
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 5.0])
    for vectors, expected in (([a, 3 * a], 1), ([a, b], 0), ([a, -a], -1), ([a, a, b], 1 / 3)):
        assert agreement(torch.stack(vectors)) == pytest.approx(expected)


def noisy(n: int, *, shared: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Own and base directions and sizes of n minibatches: own ones share a part of length `shared`, base ones all."""
    draws = torch.randn(n, 200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    draws[:, 0] = 0
    draws /= draws.norm(dim=1, keepdim=True)
    common = torch.zeros_like(draws)
    common[:, 0] = 1
    return shared * common + (1 - shared**2) ** 0.5 * draws, common, torch.ones(n, dtype=torch.float64)


@pytest.mark.parametrize("shared", [0.0, 0.1, 0.3, 0.8])
def test_the_interval_of_what_lasts_holds_the_truth_about_as_often_as_it_says(shared: float) -> None:
    held = 0
    for seed in range(60):
        low, high = lasting_interval(*noisy(8, shared=shared, seed=seed))
        held += (low or 0) - 1e-9 <= shared <= (high or 0) + 1e-9
    assert held >= 51  # 95 % of 60 are 57
    assert lasting_interval(*noisy(2, shared=shared, seed=0)) == (None, None)


@pytest.mark.parametrize(
    ("lasts", "low", "high", "verdict"),
    [
        (0.04, 0.02, 0.06, "do not show"),
        (0.04, 0.02, 0.045, "have no effect"),
        (0.06, 0.055, 0.07, "have an effect of their own:"),
        (0.06, None, None, "do not show"),
    ],
)
def test_the_verdict_is_given_only_where_the_interval_is_clear(
    lasts: float, low: float | None, high: float | None, verdict: str
) -> None:
    row = rows_of(Taylor(order=1))[WHOLE] | {"lasts": lasts, "lasts_low": low, "lasts_high": high}
    assert verdict in terms_answer(row, 8)
