"""Settings that do nothing in a recipe: listed for readers, refused where somebody set one and waits for its effect.

Not checked by Recipe itself, so that runs which were trained with one still open.
"""

from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.objectives.taylor_terms import PUBLISHED_ETA, USED_BY
from rattle.recipes.recipe import Recipe
from rattle.weights import AWP


def idle_settings(recipe: Recipe) -> dict[str, str]:
    """{setting: why it does nothing in this recipe}.

    >>> idle_settings(Recipe())["objective.taylor.eta"]
    'objective.taylor.order is 0'
    """
    found, needs = {}, recipe.objective.needs
    taylor = getattr(recipe.objective, "taylor", None)
    if taylor is not None and taylor.order == 0:
        found |= dict.fromkeys((f"objective.taylor.{name}" for name in ("eta", "mode")), "objective.taylor.order is 0")
    own = f"{recipe.objective.title} has an inner attack of its own"
    found |= dict.fromkeys((f"attack.{name}".replace("_", "-") for name in unused(recipe)), own)
    if not needs.features:
        found["head"] = "only the Taylor terms' readings head and released look at the network's head"
    if taylor is not None and taylor.order:
        found |= {
            f"objective.taylor.{name}": f"only for mode {' and '.join(modes)}"
            for name, modes in USED_BY.items()
            if taylor.mode not in modes
        }
    if taylor is not None and taylor.mode == "sampled":
        found["objective.taylor.eta"] = "mode sampled averages the method's own terms over u and adds none"
    if not needs.noise:
        found["noise-samples"] = "only objective.taylor.mode exact, trace and sampled draw u again in the outer step"
    if not needs.noise and not needs.head_noise:
        found["noise.outer"] = "no u enters the outer step of this recipe"
    if recipe.noise.sigma == 0 and not recipe.noise.inner and not recipe.noise.outer:
        found |= dict.fromkeys(("noise.where", "noise.scale"), "noise.sigma is 0")
    if recipe.awp is None:
        found["awp.*"] = "this recipe moves no weights; --awp.kind AWP, SAM or ASAM does"
    taylor_less = taylor is None or taylor.order == 0
    if isinstance(recipe.awp, AWP) and taylor_less:
        found["awp.climbs"] = "without Taylor terms, both are the whole loss"
    if recipe.attack.threat.norm != "l2":
        found["attack.box-first"] = "only in the l_2 ball does the order of the projections matter"
    if recipe.average is None:
        found["average.*"] = "weights are not averaged; --average.kind EMA or SWA does it"
    if recipe.data.val_size == 0:
        found |= dict.fromkeys(("val-attack.*", "evaluate-every"), "no images are held out (data.val-size 0)")
    return found


def unused(recipe: Recipe) -> tuple[str, ...]:
    """The settings of the inner attack that the objective has no use for."""
    return getattr(recipe.objective, "unused", ())


def refuse_idle(recipe: Recipe) -> Recipe:
    """The recipe; raises RattleError for a setting that was changed and does nothing."""
    idle, noise, taylor = idle_settings(recipe), recipe.noise, getattr(recipe.objective, "taylor", None)
    eta = None if taylor is None or taylor.eta == PUBLISHED_ETA.get(taylor.order) else taylor.eta  # that of its name
    scale = None if noise.scale == "absolute" else noise.scale
    climbs = None if getattr(recipe.awp, "climbs", "loss") == "loss" else "plain"
    box_first = recipe.attack.box_first or None
    set_ones = {
        "awp.climbs": climbs,
        "attack.box-first": box_first,
        "head": recipe.head,
        "noise.outer": noise.outer,
        "noise.scale": scale,
        "objective.taylor.eta": eta,
    }
    for name, value in set_ones.items():
        if value is not None and name in idle:
            raise RattleError(f"{name} {value} does nothing: {idle[name]}")
    usual = PGD()
    for name in {"loss", "start", "restarts"} & set(unused(recipe)):  # the others follow from the dataset and -fast
        if (value := getattr(recipe.attack, name)) != getattr(usual, name):
            raise RattleError(f"attack.{name} {value} does nothing: {recipe.objective.title} has an attack of its own")
    if recipe.awp and recipe.awp.warmup >= recipe.epochs:
        kind = type(recipe.awp).__name__
        raise RattleError(
            f"awp.warmup {recipe.awp.warmup} outlasts the {recipe.epochs} epochs, so {kind} would never begin: "
            f"train longer, set a shorter --awp.warmup, or leave {kind} out"
        )
    if recipe.batch_norm_momentum is not None and recipe.batch_norm == "held":
        raise RattleError("batch-norm-momentum does nothing with batch-norm held: the statistics do not move")
    if recipe.data.extra is None and recipe.data.extra_fraction is not None:
        share = f"data.extra-fraction {recipe.data.extra_fraction:g}"
        raise RattleError(f"{share} needs images to draw, generated or others: give them with --data.extra FILE.npz")
    if recipe.evaluate_every > recipe.epochs:
        raise RattleError(f"evaluate-every {recipe.evaluate_every} does nothing in {recipe.epochs} epochs")
    return recipe
