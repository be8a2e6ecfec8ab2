"""Settings that do nothing are refused before a run begins."""

from dataclasses import replace
from pathlib import Path

import pytest

from rattle.errors import RattleError
from rattle.objectives import Taylor, Trades
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.training.loop import fit
from rattle.weights import Noise

TRADES, AWP = get_recipe("digits-linf-cnn-trades"), get_recipe("digits-linf-cnn-trades-awp")
GAT = get_recipe("digits-linf-cnn-gat")
SAMPLED = Trades(taylor=Taylor(order=2, mode="sampled", eta=0.5))


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        (replace(AWP, epochs=5), "awp.warmup 5"),
        (replace(TRADES, head="fc"), "head fc"),
        (replace(GAT, attack=replace(GAT.attack, restarts=3)), "attack.restarts 3"),
        (replace(TRADES, epochs=3, evaluate_every=4), "evaluate_every 4"),
        (replace(TRADES, noise=Noise(sigma=0, scale="filter")), "noise.scale filter"),
        (replace(TRADES, noise=Noise(inner=0.1)), "noise.inner 0.1"),
        (replace(TRADES, objective=SAMPLED, noise=Noise()), "objective.taylor.eta 0.5"),
        (replace(TRADES, batch_norm="held", batch_norm_momentum=0.1), "batch_norm_momentum 0.1"),
        (replace(TRADES, data=replace(TRADES.data, extra_fraction=0.5)), "data.extra_fraction 0.5"),
    ],
)
def test_a_setting_that_does_nothing_is_refused_before_anything_is_written(
    recipe: Recipe, setting: str, tmp_path: Path
) -> None:
    with pytest.raises(RattleError, match=f"^{setting} does nothing: "):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe  # such a run of an earlier version opens


def test_named_recipes_are_not_refused() -> None:
    released = ("trades-2nd-released", "trades-awp-fast", "gat-fast")
    for method in ("at", "trades", "at-awp", "trades-awp-2nd", "fat-trades", *released):
        recipe = get_recipe(f"digits-linf-cnn-{method}")
        assert recipe.refuse_idle() == recipe
