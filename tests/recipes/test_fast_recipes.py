"""Recipes ending in -fast: the same method at a fraction of the cost."""

from rattle.recipes.catalog import get_recipe


def test_fast_recipes_keep_the_method_and_cut_the_cost() -> None:
    for name in ("cifar10-linf-preact18-trades-awp-2nd", "digits-l2-cnn-at", "svhn-linf-preact18-trades-2nd-released"):
        usual, fast = get_recipe(name), get_recipe(f"{name}-fast")
        assert fast.name == f"{name}-fast"
        assert (fast.objective, fast.noise, fast.model, fast.data) == (
            usual.objective,
            usual.noise,
            usual.model,
            usual.data,
        )
        assert fast.attack.threat == usual.attack.threat
        assert fast.val_attack == usual.val_attack  # the checkpoint is chosen by the same attack
        assert fast.epochs * (2 * fast.attack.steps + 7) < 0.4 * usual.epochs * (2 * usual.attack.steps + 7)
        assert fast.average is not None
