"""Hardening: robust fine-tuning of a classifier that was trained elsewhere, by settings chosen for its images.

Measure the model; train it with TRADES at the strongest trade-off 1/lambda, then at weaker ones until the held-out
images lose no more clean accuracy than is allowed; measure it again. Each try is a run of `fit` from the weights given.
The first try decides the learning rate: where it learns too little, all are made at ten times the rate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from rattle.data import Data, Dataset, Images
from rattle.data.dataset import choose_images, train_test_split
from rattle.errors import RattleError
from rattle.evaluation.caveats import NEAR_CHANCE
from rattle.evaluation.evaluate import classify, evaluate, make_plan
from rattle.evaluation.inputs import Attacks
from rattle.evaluation.network import Network
from rattle.evaluation.results import Evaluation, save_results
from rattle.evaluation.target import build_network, build_untrained, with_normalisation
from rattle.objectives import Trades
from rattle.recipes.catalog import MEMORY, batch_size, make_recipe
from rattle.recipes.recipe import SGD, AdamW, Recipe
from rattle.recipes.schedules import Cosine
from rattle.recipes.schema import ball_text
from rattle.runs.distributed import choose_device
from rattle.runs.io import read_jsonl
from rattle.runs.load import load
from rattle.runs.lock import Held, check_folder
from rattle.runs.paths import Run, held_out_accuracies
from rattle.runs.progress import Console, NullConsole, RichConsole
from rattle.settings import Plain
from rattle.threat import Norm, Threat
from rattle.training.fit_inputs import Loaded, TrainingData, as_dataset, as_images
from rattle.training.loop import fit
from rattle.training.metrics import LogTarget
from rattle.weights import eval_mode

TRADE_OFFS = (6.0, 2.0, 0.6, 0.2)  # 1/lambda, the published one first; less keeps more clean accuracy
HARDEN_STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 500, 5, 30  # a run has as many epochs as make the steps, within these
HELD_OUT, MOST_HELD_OUT = 5, 1000  # one training image in five decides the trade-off
RAMP, WARMUP = 0.3, 0.1  # shares of the run in which epsilon and the learning rate grow
SGD_RATE, ADAMW_RATE = 0.01, 1e-4  # a tenth of what networks are trained with from scratch
ABOVE_CHANCE = 0.05  # robust accuracy that the first try has to reach beyond guessing, or it learned too little
FASTER = 10  # times the rate of such a try


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardened:
    """A hardened model, and what it was and is worth on images that it was not trained on."""

    model: nn.Module  # with the weights of the run, in evaluation mode
    run: Run
    recipe: Recipe
    before: Evaluation
    after: Evaluation
    tried: dict[tuple[float, float], tuple[float, float]]  # lr, 1/lambda -> clean and robust accuracy held out
    held_out: float  # clean accuracy on these before
    clean_drop: float

    @property
    def verdict(self) -> str:
        """What was gained and lost, in a sentence that says so if the result is not what was asked for."""
        gained = 100 * (self.after.robust_accuracy - self.before.robust_accuracy)
        kept = 100 * (self.after.clean_accuracy - self.before.clean_accuracy)
        change = f"robust accuracy {gained:+.1f} points, clean accuracy {kept:+.1f}"
        if gained <= 0:
            return f"WORSE: {change}: the model given resists these attacks as well; keep it, or train longer (epochs)"
        if kept < -self.clean_drop:
            return f"MORE LOST than the {self.clean_drop:g} points allowed: {change}"
        return f"hardened: {change}"

    def __repr__(self) -> str:
        return f"Hardened({self.verdict})"

    def _repr_html_(self) -> str:
        """The table of `__str__` for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        """Accuracies in percent with 95 % intervals, before and after; what was tried; the verdict."""
        lines = [f"{'':12}{'before, %':>20}{'after, %':>20}"]
        for old, new in zip(self.before.records(), self.after.records(), strict=True):
            line = f"{old['attack']:12}"
            for row in (old, new):
                line += f"{100 * row['accuracy']:6.1f} [{100 * row['low']:4.1f}, {100 * row['high']:5.1f}]"
            lines.append(line)
        threat = self.recipe.attack.threat
        against = ball_text(threat)
        lines.append(f"n = {self.after.n}, {against}; on held-out images:")
        lines.append(f"  clean {100 * self.held_out:.1f}  before")
        rate = self.recipe.optimizer.lr
        several = len({lr for lr, _ in self.tried}) > 1
        for (lr, inv_lambda), (clean, robust) in self.tried.items():
            line = f"  clean {100 * clean:.1f}  robust {100 * robust:.1f}  at 1/lambda {inv_lambda:g}"
            if several:
                line += f", lr {lr:g}" if lr == rate else f", lr {lr:g}: learns too little"
            lines.append(line)
        robust = [robust for (lr, _), (_, robust) in self.tried.items() if lr == rate]
        if robust != sorted(robust, reverse=True):
            lines.append(
                "robust accuracy rose as 1/lambda fell: the tries were too short; take more epochs, or a larger "
                f"learning rate than {rate:g} (lr)"
            )
        return "\n".join([*lines, self.verdict])


def harden(
    model: nn.Module | Network,
    data: TrainingData,
    epsilon: float = 8 / 255,
    *,
    norm: Norm = "linf",
    clean_drop: float = 2.0,
    out: Path | str = "runs/hardened",
    test: TrainingData | None = None,
    classes: Sequence[str] | None = None,
    method: str = "trades",
    lr: float | None = None,
    attacks: Attacks = "pgd20",
    n: int | None = 1000,
    overwrite: bool = False,
    log: LogTarget = "tensorboard",
    console: Console | None = None,
    quiet: bool = False,
    **changes: Any,
) -> Hardened:
    """Make a trained classifier robust and keep its clean accuracy; `out` becomes a run folder like those of `fit`.

    model: logits [n, C] for images in [0, 1], trained in place, or a `Network`, which names its code and weights. data,
    classes: as for `fit`. epsilon, norm: the perturbations to resist. clean_drop: points of clean accuracy that may be
    lost on held-out images. test: images to measure on; those of `data`, or a fifth of them, when None. method: one
    with a trade-off 1/lambda, such as trades-2nd or trades-awp. lr: the learning rate, when None 0.01 of SGD, or
    1e-4 of AdamW for networks with LayerNorm, and ten times that if the first try is hardly more robust than guessing.
    attacks, n: measure by these, on so many of the test images. console: shows progress in another way; quiet: show
    none. changes: fields of `Recipe` in place of those chosen here, such as epochs=20 or seed=1.
    """
    run, console = Run(Path(out)), NullConsole() if quiet else console or RichConsole()
    try:
        check_folder(run, resume=False, overwrite=overwrite)
    except Held:  # harden itself resumes nothing
        raise Held(
            f"{run.folder} holds a run already: `rattle train {run.folder} --resume` continues its training, "
            "--overwrite (in Python overwrite=True) replaces it"
        ) from None
    images = all_images(model, data, test, classes)
    named = {}
    if isinstance(model, Network):
        named, module = build_start(model, len(images.classes), images.channels)
    else:
        module = model
    settings = data if isinstance(data, Data) else MEMORY
    if settings.val_size is None and images.val is None:
        settings = replace(settings, val_size=min(MOST_HELD_OUT, math.ceil(len(images.train) / HELD_OUT)))
    images = images.split(settings.train_size, settings.val_size, settings.split_seed)
    if images.val is None:
        raise RattleError("harden chooses the trade-off on held-out images: leave out data.val_size 0")
    recipe = choose_recipe(module, images, method, lr, data=settings, norm=norm, epsilon=epsilon, **named, **changes)

    index = choose_images(images.test.y, n)
    measured = images.test.subset(index)
    about = {"index": index, "threat": Threat(norm=norm, epsilon=epsilon), "console": console}
    start = {name: value.clone() for name, value in module.state_dict().items()}
    tried = {}
    with TemporaryDirectory() as folder:
        module.to(choose_device(recipe.device))
        before = evaluate(module, measured.x, measured.y, attacks, out=folder, metadata={"name": "before"}, **about)
        refuse_untrained(before, len(images.classes))
        held_out = clean_accuracy(module, images.val)
        guessing = 1 / len(images.classes)
        left = list(TRADE_OFFS)
        while left:
            inv_lambda = left.pop(0)
            recipe = replace(recipe, objective=replace(recipe.objective, inv_lambda=inv_lambda))
            module.load_state_dict(start)
            given = Loaded(images) if isinstance(data, Data) else images
            own = None if named else module
            fit(recipe, run.folder, model=own, data=given, overwrite=overwrite, log=log, console=console)
            overwrite = True  # of the try before
            reached = held_out_accuracies(read_jsonl(run.metrics, [])[-1])
            assert reached is not None, "the last epoch is evaluated"
            rate = recipe.optimizer.lr
            tried[rate, inv_lambda] = reached
            learned = len(tried) > 1 or reached[1] >= guessing + ABOVE_CHANCE
            if not learned and lr is None and "optimizer" not in changes:
                console.log(f"lr {rate:g} learns too little: {FASTER * rate:g} is tried")
                recipe = replace(recipe, optimizer=replace(recipe.optimizer, lr=FASTER * rate))
                left.insert(0, inv_lambda)
            elif reached[0] >= held_out - clean_drop / 100:
                break
            else:
                console.log(f"1/lambda {inv_lambda:g} loses more than {clean_drop:g} points of clean accuracy held out")
    load(run.folder, model=module)
    facts = {"checkpoint": str(run.checkpoint("best")), "recipe": recipe.name, "data": recipe.data.name}
    after = evaluate(module, measured.x, measured.y, attacks, out=run.results, metadata=facts, **about)
    save_results(before, run.folder / "before")
    return Hardened(
        model=module,
        run=run,
        recipe=recipe,
        before=before,
        after=after,
        tried=tried,
        held_out=held_out,
        clean_drop=clean_drop,
    )


def all_images(
    model: nn.Module | Network, data: TrainingData, test: TrainingData | None, classes: Sequence[str] | None
) -> Dataset:
    """Training and test images, nothing held out yet."""
    module = None if isinstance(model, Network) else model
    images = data.source() if isinstance(data, Data) else as_dataset(data, module, classes)
    if test is not None:
        images = replace(images, test=Images(*as_images(test, module)))
    if not len(images.test):
        images = train_test_split(images.name, images.train, images.classes, seed=0)
    return images


def build_start(network: Network, classes: int, channels: int) -> tuple[Plain, nn.Module]:
    """A network by name as fields of a recipe, and built."""
    network.check_weights()
    if network.random_weights or network.classes:
        raise RattleError("harden takes trained weights for the classes of the data: no random weights, no classes")
    network = with_normalisation(network, classes, channels)
    make = build_network if network.weights else build_untrained
    named = {
        "model": network.model,
        "init": network.weights,
        "width": network.width,
        "activation": network.activation,
        "normalise": (*network.mean, *network.std) or False,
    }
    return named, make(network, classes, channels)


def choose_recipe(module: nn.Module, images: Dataset, method: str, lr: float | None = None, **settings: Any) -> Recipe:
    """The settings of robust fine-tuning, by the network and the number of images; `settings` come first."""
    layer_norm = any(isinstance(part, nn.LayerNorm) for part in module.modules())  # transformers, ConvNeXt
    optimizer = AdamW(lr=ADAMW_RATE) if layer_norm else SGD(lr=SGD_RATE)
    chosen = {
        "optimizer": optimizer if lr is None else replace(optimizer, lr=lr),
        "schedule": Cosine(warmup=WARMUP),
        "ramp": RAMP,
        "batch_size": batch_size(len(images.train)),
    }
    recipe = make_recipe(method, **{**chosen, **settings})
    if not isinstance(recipe.objective, Trades):
        raise RattleError(f"harden needs a method with a trade-off 1/lambda, such as trades-2nd, got {method}")
    epochs = recipe.epochs
    if "epochs" not in settings:
        epochs = min(MOST_EPOCHS, max(FEWEST_EPOCHS, math.ceil(HARDEN_STEPS / recipe.steps(len(images.train)))))
    # The last epoch is the result: the one most robust on few held-out images is often an earlier, less accurate one.
    return replace(recipe, epochs=epochs, evaluate_every=epochs)


def refuse_untrained(before: Evaluation, classes: int) -> None:
    """Refuse a start that guesses: other weights, labels or normalisation were meant."""
    if before.clean_accuracy < NEAR_CHANCE / classes:
        hints = "; ".join(before.warnings) or "are the weights, the labels and the normalisation those of its training?"
        raise RattleError(
            f"the model classifies {100 * before.clean_accuracy:.1f} % of {before.n} test images of {classes} classes "
            f"correctly, which is near chance: {hints}"
        )


def clean_accuracy(module: nn.Module, images: Images) -> float:
    with eval_mode(module):
        return float(classify(make_plan(module, images.x, images.y))[0].double().mean())
