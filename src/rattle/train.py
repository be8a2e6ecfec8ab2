"""Training: step() is the paper's Algorithm 1, fit() is the loop around it.

Nothing random is carried along: the order of images, augmentation and attack noise are functions of (seed, epoch,
image), and u of (seed, step). A run resumed at any step is the run that was never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from rattle import checkpoint, distributed
from rattle.attacks import PGD
from rattle.console import Console, Silent
from rattle.data import Dataset, Images, batches, to_float
from rattle.errors import RattleError
from rattle.evaluate import evaluate
from rattle.models import build, find_head
from rattle.objectives import Objective
from rattle.randomness import Streams, fork
from rattle.recipes import Recipe
from rattle.runs import Run, events
from rattle.views import Views
from rattle.weights import AWP, EMA, SWA, Noise, perturbed

ORDER, PIXELS, ATTACK, WEIGHTS, INIT = range(5)  # what a forked seed is for


def step(
    views: Views,
    x: Tensor,
    y: Tensor,
    *,
    attack: PGD,
    noise: Noise,
    objective: Objective,
    awp: AWP | None,
    shared: torch.Generator,
    private: Streams,
    draws: int = 1,
) -> dict[str, Tensor]:
    """One pass of Algorithm 1 up to the gradient: returns the named terms, leaves their sum's gradient in .grad."""
    model = views.model
    # Generate adversarial examples: one u ~ N(0, sigma^2) for the minibatch, K steps at w + u.
    with perturbed(model, noise(model, generator=shared)):
        x_adv = attack(model, x, y, generator=private)
    # Modes that average over u in the outer step draw it afresh, for both x and x'.
    need = views.need
    u = tuple(noise(model, generator=shared) for _ in range(draws)) if need.derivatives or need.sampled else ()

    def terms() -> dict[str, Tensor]:
        return objective(views(x, x_adv, u), y, reduce=distributed.mean)

    # Optimise at w, or with AWP at the worst w + v near it; w itself is back before the optimizer steps.
    v = awp(model, awp.gradients(model, lambda: total(terms()))) if awp else {}
    with perturbed(model, v):
        named = terms()
        total(named).backward()
    return {name: value.detach() for name, value in named.items()}


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss: the sum of its named terms."""
    return torch.stack(tuple(terms.values())).sum()


@dataclass(slots=True)
class Progress:
    """How far a run is; plain numbers, saved in every checkpoint."""

    epoch: int = 0  # epochs completed
    batch: int = 0  # batches completed of the next one
    step: int = 0  # optimizer steps completed
    sums: dict[str, float] = field(default_factory=dict)  # of the terms over the batches of the epoch begun
    best: float = -1.0  # highest robust accuracy on the held-out images
    best_epoch: int = 0
    metrics_size: int = 0  # bytes of metrics.jsonl that this progress includes


@dataclass(slots=True)
class Learner:
    """Everything that changes while training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None
    progress: Progress

    @property
    def judged(self) -> nn.Module:
        """The weights that count: the average once it holds something, else the model itself."""
        started = self.average is not None and int(self.average.n_averaged) > 0
        return self.average.module if self.average is not None and started else self.model


def build_model(recipe: Recipe, data: Dataset) -> nn.Module:
    """The recipe's network with its initial weights, a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fork(recipe.seed, INIT))
        model = build(recipe.model, classes=len(data.classes), channels=data.channels, width=recipe.width)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def begin(recipe: Recipe, data: Dataset) -> Learner:
    model = build_model(recipe, data)
    settings = recipe.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )
    average = recipe.average.averaged(model) if recipe.average else None
    return Learner(model, optimizer, average, Progress())


def fit(
    recipe: Recipe,
    out: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | Silent | None = None,
) -> Run:
    """Train a recipe into a run folder; `rattle.load(out)` then opens its best model.

    >>> from rattle.recipes import named
    >>> import dataclasses, tempfile
    >>> recipe = dataclasses.replace(named("digits-linf-cnn-trades"), epochs=1, width=4)
    >>> run = fit(recipe, tempfile.mkdtemp())
    >>> run.checkpoint("best").exists()
    True
    """
    console = console or Silent()
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    data = recipe.data.load()
    learner = begin(recipe, data)
    head = head_of(learner.model, recipe)
    run = Run.open(out, recipe, resume=resume, overwrite=overwrite)  # last: a recipe that cannot run replaces nothing
    if resume and run.checkpoint("last").exists():
        restore(learner, run)
    steps = max(len(data.train) // min(recipe.batch_size, len(data.train)), 1)
    views = Views(learner.model, recipe.objective.need, head)
    progress = learner.progress
    with (
        console.bar(recipe.name, recipe.epochs * steps, done=progress.step) as advance,
        events(run, purge_step=progress.epoch + 1) as log,
    ):
        while progress.epoch < recipe.epochs:
            begun = time.perf_counter()
            train_epoch(learner, views, recipe, data.train, steps, run, advance)
            metrics = finish_epoch(learner, recipe, data, steps)
            record(learner, recipe, data, run, metrics)
            seconds = time.perf_counter() - begun
            run.append(run.timing, {"epoch": metrics["epoch"], "seconds": seconds})
            log(metrics)
            if not getattr(console, "live", False):
                console.say(summary(metrics, recipe.epochs, seconds))
    return run


def head_of(model: nn.Module, recipe: Recipe) -> nn.Linear | None:
    """The head, when Taylor terms ask for its input."""
    return find_head(model, recipe.head) if recipe.objective.need.features else None


def train_epoch(
    learner: Learner, views: Views, recipe: Recipe, train: Images, steps: int, run: Run, advance: Callable[..., None]
) -> None:
    """The steps of one epoch, from where the last one stopped."""
    progress, seed = learner.progress, recipe.seed
    epoch = progress.epoch
    order = list(batches(len(train), recipe.batch_size, seed=fork(seed, ORDER), epoch=epoch))
    awp = recipe.awp if recipe.awp and epoch >= recipe.awp.warmup else None
    learner.model.train()
    for index in order[progress.batch :]:
        set_rate(learner.optimizer, recipe, progress.step / (recipe.epochs * steps))
        part = train[index]
        x = to_float(recipe.data.augment(part.x, Streams(fork(seed, PIXELS, epoch), index)))
        learner.optimizer.zero_grad(set_to_none=True)
        terms = step(
            views,
            x,
            part.y,
            attack=recipe.attack,
            noise=recipe.noise,
            objective=recipe.objective,
            awp=awp,
            shared=torch.Generator().manual_seed(fork(seed, WEIGHTS, progress.step)),
            private=Streams(fork(seed, ATTACK, epoch), index),
            draws=recipe.draws,
        )
        check_finite(terms, progress, run)
        learner.optimizer.step()
        if learner.average is not None and isinstance(recipe.average, EMA):
            learner.average.update_parameters(learner.model)
        progress.batch += 1
        progress.step += 1
        for name, value in terms.items():
            progress.sums[name] = progress.sums.get(name, 0.0) + float(value)
        figures = {name: value / progress.batch for name, value in progress.sums.items()}
        advance(1, epoch=f"{epoch + 1}/{recipe.epochs}", **figures, best=max(progress.best, 0.0))


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, t: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = recipe.optimizer.lr * recipe.schedule(t)


def check_finite(terms: Mapping[str, Tensor], progress: Progress, run: Run) -> None:
    """Stop before a diverged loss reaches the weights."""
    if all(math.isfinite(value) for value in terms.values()):
        return
    values = ", ".join(f"{name} {float(value):.4g}" for name, value in terms.items())
    last = run.checkpoint("last")
    kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint was written yet"
    raise RattleError(f"the loss diverged at step {progress.step + 1} ({values}); {kept}; try a smaller optimizer.lr")


def finish_epoch(learner: Learner, recipe: Recipe, data: Dataset, steps: int) -> dict[str, Any]:
    """Average the weights, evaluate on the held-out images, and close the epoch."""
    progress = learner.progress
    swa = recipe.average if isinstance(recipe.average, SWA) else None
    if learner.average is not None and swa and progress.epoch + 1 > swa.start * recipe.epochs:
        learner.average.update_parameters(learner.model)
        reestimate_statistics(learner.average.module, data.train, recipe)
    metrics: dict[str, Any] = {
        "epoch": progress.epoch + 1,
        "step": progress.step,
        "lr": learner.optimizer.param_groups[0]["lr"],
        "loss": sum(progress.sums.values()) / steps,
        **{name: value / steps for name, value in progress.sums.items()},
    }
    due = metrics["epoch"] % recipe.evaluate_every == 0 or metrics["epoch"] == recipe.epochs
    if due and data.val is not None:
        metrics |= validate(learner.model, data.val, recipe)
        if learner.judged is not learner.model:
            metrics |= {f"{k}_average": v for k, v in validate(learner.judged, data.val, recipe).items()}
    progress.epoch, progress.batch, progress.sums = progress.epoch + 1, 0, {}
    return metrics


def validate(model: nn.Module, val: Images, recipe: Recipe) -> dict[str, float]:
    result = evaluate(model, val.x, val.y, {"robust": recipe.val_attack}, seed=recipe.seed)
    return {"val_clean": result.clean_accuracy, "val_robust": result.robust_accuracy}


def reestimate_statistics(model: nn.Module, train: Images, recipe: Recipe) -> None:
    """BatchNorm statistics of averaged weights: one pass over the clean training images (Izmailov et al. 2018)."""
    indices = torch.arange(len(train)).split(recipe.batch_size)
    torch.optim.swa_utils.update_bn((to_float(train[index].x) for index in indices if len(index) > 1), model)


def record(learner: Learner, recipe: Recipe, data: Dataset, run: Run, metrics: dict[str, Any]) -> None:
    """Write the epoch's line and its checkpoints: best when it is, last always."""
    progress = learner.progress
    check_weights(learner, run)
    run.append(run.metrics, metrics)
    progress.metrics_size = run.metrics.stat().st_size
    robust = metrics.get("val_robust_average", metrics.get("val_robust"))
    better = robust is not None and robust > progress.best
    if better or (robust is None and data.val is None):
        progress.best, progress.best_epoch = robust or 0.0, metrics["epoch"]
        save(learner, recipe, data, run, "best")
    save(learner, recipe, data, run, "last")


def check_weights(learner: Learner, run: Run) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in learner.model.parameters()):
        raise RattleError(
            f"the weights are not finite after step {learner.progress.step}; the checkpoints in {run.folder} are intact"
        )


def save(learner: Learner, recipe: Recipe, data: Dataset, run: Run, name: str) -> None:
    checkpoint.save(
        run.checkpoint(name),
        recipe=recipe,
        classes=data.classes,
        shape=tuple(data.test.x.shape[1:]),
        progress={f: getattr(learner.progress, f) for f in Progress.__slots__},
        model=learner.model,
        average=learner.average,
        optimizer=learner.optimizer if name == "last" else None,
    )


def restore(learner: Learner, run: Run) -> None:
    """Go on from the last checkpoint; lines written after it are forgotten, for they come again."""
    saved = checkpoint.read(run.checkpoint("last"))
    learner.model.load_state_dict(saved.part("model"))
    if learner.average is not None:
        learner.average.load_state_dict(saved.part("average"))
    checkpoint.restore_optimizer(learner.optimizer, learner.model, saved.part("optimizer"))
    learner.progress = Progress(**saved.progress)
    run.cut(run.metrics, learner.progress.metrics_size)


def summary(metrics: Mapping[str, Any], epochs: int, seconds: float) -> str:
    """An epoch in a line, for logs without a terminal."""
    figures = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name not in ("epoch", "step"))
    return f"epoch {metrics['epoch']}/{epochs}  {figures}  {seconds:.1f} s"
