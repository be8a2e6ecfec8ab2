"""What a run is about to do, in a few lines: images, network, threat, length."""

from rattle.recipes.schema import ball_text
from rattle.training.state import TrainState

NONE_HELD_OUT = "nothing: the last checkpoint counts as the best"


def overview(state: TrainState) -> str:
    """The lines that `rattle train` prints before it trains."""
    recipe, data, done = state.recipe, state.data, state.progress.epoch
    n, threat = len(data.train), recipe.attack.threat
    batch = min(recipe.batch_size, n)
    shape = "x".join(map(str, data.train.shape[1:]))
    images = f"{n:,} of {shape} from {recipe.data.name}, {len(data.classes)} classes; {recipe.data.augment}"
    if state.extra is not None:
        count = recipe.data.extra_count(batch)
        images += f"; {count} of every {batch} from {recipe.data.extra} ({len(state.extra):,})"
    left = f", {recipe.epochs - done} of them left" if done else ""
    rate = f"learning rate {recipe.optimizer.lr:g}, {type(recipe.schedule).__name__}"
    steps = recipe.steps(n)
    weights = sum(p.numel() for p in state.model.parameters())
    rows = {
        "images": images,
        "held out": f"{len(data.val):,} images, to choose the best checkpoint by" if data.val else NONE_HELD_OUT,
        "network": f"{recipe.model}, {weights:,} parameters",
        "method": recipe.with_seed(f"{recipe.method} against {ball_text(threat)}"),
        "epochs": f"{recipe.epochs}{left}, each {steps} step{'s' if steps > 1 else ''} of {batch} images; {rate}",
    }
    return "\n".join(f"{name:<8} {row}" for name, row in rows.items())
