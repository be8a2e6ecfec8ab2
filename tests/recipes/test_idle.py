"""Settings that do nothing are refused before training, and listed."""

from dataclasses import replace
from pathlib import Path

import pytest

from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.objectives import AT, Taylor, Trades
from rattle.recipes.catalog import get_recipe
from rattle.recipes.idle import idle_settings, refuse_idle
from rattle.recipes.recipe import Recipe
from rattle.training.loop import fit
from rattle.weights import Noise

TRADES, AWP = get_recipe("digits-linf-cnn-trades"), get_recipe("digits-linf-cnn-trades-awp")
GAT = get_recipe("digits-linf-cnn-gat")


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (replace(AWP, epochs=5), "awp.warmup 5 outlasts the 5 epochs, so AWP would never begin"),
        (replace(TRADES, head="fc"), "head fc does nothing: only the Taylor terms' readings head and released"),
        (
            replace(GAT, attack=replace(GAT.attack, restarts=3)),
            "attack.restarts 3 does nothing: GAT has an attack of its own",
        ),
        (replace(TRADES, epochs=3, evaluate_every=4), "evaluate-every 4 does nothing in 3 epochs"),
        (replace(TRADES, noise=Noise(sigma=0, scale="filter")), "noise.scale filter does nothing: noise.sigma is 0"),
        (replace(TRADES, attack=replace(TRADES.attack, box_first=True)), "attack.box-first True does nothing: only in"),
        (replace(AWP, awp=replace(AWP.awp, climbs="plain")), "awp.climbs plain does nothing: without Taylor terms"),
        (replace(TRADES, noise=Noise(outer=0.1)), "noise.outer 0.1 does nothing: no u enters the outer step"),
        (
            replace(TRADES, objective=Trades(taylor=Taylor(order=2, mode="sampled", eta=0.5)), noise=Noise()),
            "objective.taylor.eta 0.5 does nothing: mode sampled averages the method's own terms",
        ),
    ],
)
def test_a_setting_that_does_nothing_is_refused_before_anything_is_written(
    recipe: Recipe, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(RattleError, match=sentence):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe  # such a run of an earlier version opens


def test_named_recipes_are_not_refused() -> None:
    for method in (
        "at",
        "trades",
        "at-awp",
        "trades-awp-2nd",
        "trades-2nd-released",
        "trades-awp-fast",
        "gat-fast",
        "fat-trades",
    ):
        refuse_idle(get_recipe(f"digits-linf-cnn-{method}"))


def test_what_does_nothing_follows_from_the_recipe() -> None:
    plain, second = idle_settings(TRADES), idle_settings(get_recipe("digits-linf-cnn-trades-awp-2nd"))
    noise = {"noise-samples", "noise.where", "noise.scale", "noise.outer"}
    others = {"objective.taylor.mode", "objective.taylor.eta", "head", "awp.*", "average.*", "attack.box-first"}
    assert set(plain) == noise | others
    readings = {f"objective.taylor.{name}" for name in ("antithetic", "temperature", "share", "statistics")}
    assert set(second) == {"noise-samples", "noise.outer", "average.*", "attack.box-first"} | readings
    assert idle_settings(GAT)["attack.step-size"] == "GAT has an inner attack of its own"
    unseen = replace(TRADES, objective=AT(), data=replace(TRADES.data, val_size=0))
    assert idle_settings(unseen)["evaluate-every"] == "no images are held out (data.val-size 0)"


def test_a_recipe_asked_for_by_its_name_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "digits-linf-cnn-trades"]) == 0
    out = capsys.readouterr().out
    assert "settings that do nothing in it:" in out
    assert "--objective.taylor.eta     objective.taylor.order is 0" in out
    assert main(["recipes", "digits-linf"]) == 0
    assert "settings that do nothing" not in capsys.readouterr().out
