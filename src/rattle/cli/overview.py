"""What a run is about to do, in a few lines: images, network, threat, length."""

from rattle.data import Augment
from rattle.threat import Threat
from rattle.training.state import TrainState

NONE_HELD_OUT = "nothing: the last checkpoint counts as the best"


def overview(state: TrainState) -> str:
    """The lines that `rattle train` prints before it trains."""
    recipe, data, done = state.recipe, state.data, state.progress.epoch
    n = len(data.train)
    batch = min(recipe.batch_size, n)
    shape = "x".join(map(str, data.train.shape[1:]))
    images = f"{n:,} of {shape} from {recipe.data.name}, {len(data.classes)} classes; {augmented(recipe.data.augment)}"
    if data.train.decoded:
        images += ", random crops decoded on the fly"
    if state.extra is not None:
        count = recipe.data.extra_count(batch)
        images += f"; {count} of every {batch} from {recipe.data.extra} ({len(state.extra):,})"
    left = f", {recipe.epochs - done or 'none'} of them left" if done else ""
    rate = f"learning rate {recipe.optimizer.lr:g}, {type(recipe.schedule).__name__}"
    weights = sum(p.numel() for p in state.model.parameters())
    rows = {
        "images": images,
        "held out": f"{len(data.val):,} images, to choose the best checkpoint by" if data.val else NONE_HELD_OUT,
        "network": f"{recipe.model}, {weights:,} parameters",
        "method": recipe.with_seed(f"{recipe.method} against {written(recipe.attack.threat)}"),
        "epochs": f"{recipe.epochs}{left}, each {recipe.steps(n)} steps of {batch} images; {rate}",
    }
    return "\n".join(f"{name:<8} {row}" for name, row in rows.items())


def augmented(augment: Augment) -> str:
    """How training images are changed.

    >>> augmented(Augment()), augmented(Augment(pad=0, flip=False))
    ('augmented by pad 4, flip', 'not augmented')
    """
    found = [f"{name} {size}" for name, size in (("pad", augment.pad), ("cutout", augment.cutout)) if size]
    found += ["flip"] if augment.flip else []
    found += [augment.mix] if augment.mix != "none" else []
    return f"augmented by {', '.join(found)}" if found else "not augmented"


def written(threat: Threat) -> str:
    """A threat in words; l_inf in steps of the 255 levels too.

    >>> written(Threat(norm="linf", epsilon=8 / 255))
    'linf 0.03137 (8/255)'
    """
    levels = f" ({255 * threat.epsilon:.3g}/255)" if threat.norm == "linf" else ""
    return f"{threat.norm} {threat.epsilon:.4g}{levels}"
