"""The paper's Appendix C, measured: does the KL go with the gap between losses, and that with what is not generalised?

Lemma C.3, of two classes: |L(f(x), y) - L(f(x'), y)| is positively correlated with KL(f(x) || f(x')), both at w + u,
and "approximately" so of more classes. Proposition C.1 bounds the loss on new images less that on training images,
clean and adversarial, and a small KL is to make the bound small. Both are measured at every checkpoint that a run kept:
the first over images, the second over checkpoints.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor, nn

from rattle.analysis import plots
from rattle.analysis.prepare import labels, open_run
from rattle.attacks import PGD
from rattle.data import Images
from rattle.data.dataset import check_count, choose_images
from rattle.errors import RattleError
from rattle.evaluation.inputs import floats_for
from rattle.inputs import logits_of
from rattle.losses import ce, kl
from rattle.randomness import ImageStreams
from rattle.runs.checkpoint import Checkpoint
from rattle.runs.distributed import choose_device
from rattle.runs.io import write_atomically
from rattle.runs.load import load_model, open_checkpoint
from rattle.runs.paths import Run, printable
from rattle.runs.progress import Advance, Console, NullConsole
from rattle.weights import Noise, perturbed

LEAST = 4  # images or checkpoints that a correlation takes
EXCESSES = {"clean_excess": "clean loss", "adversarial_excess": "adversarial loss"}  # on test less on training images


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Training or test images at one checkpoint: means, and the correlation over images of the KL with the gap."""

    clean: float  # L(f(x), y)
    adversarial: float  # L(f(x'), y)
    kl: float  # KL(f(x) || f(x'))
    gap: float  # |L(f(x), y) - L(f(x'), y)|
    rank: float | None  # Spearman's correlation; None where one of the two is the same for all images
    low: float | None  # its 95 % interval (Fisher's, of the ranks)
    high: float | None
    pearson: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One kept checkpoint."""

    epoch: int
    train: Split
    test: Split

    @property
    def clean_excess(self) -> float:
        return self.test.clean - self.train.clean

    @property
    def adversarial_excess(self) -> float:
        return self.test.adversarial - self.train.adversarial


def check_settings(n: int, draws: int) -> None:
    """Refuse what no correlation can be taken of."""
    check_count(n)
    if n < LEAST or draws < 1:
        raise RattleError(f"n must be >= {LEAST} and draws >= 1, got {n} and {draws}")


def losses_of(
    model: nn.Module, images: Images, *, attack: PGD, noise: Noise, draws: int = 1, seed: int = 0, batch: int = 250
) -> Tensor:
    """Of each image the clean loss, the adversarial loss, the KL and the gap, [n, 4], means over `draws` samples of u.

    `attack` climbs at w + u, as in training, with what `seed` gives to each image; `noise` draws u. `batch`: images at
    a time, which decides nothing.
    """
    total = torch.zeros(len(images), 4, dtype=torch.float64)
    x = floats_for(model, images.x)
    for draw in range(draws):
        with perturbed(model, noise(model, generator=torch.Generator().manual_seed(seed + draw))):
            for index in torch.arange(len(x), device=x.device).split(batch):
                near, y = x[index], images.y[index]
                x_adv = attack(model, near, y, generator=ImageStreams(seed + draw, index))
                with torch.no_grad():
                    z, z_adv = logits_of(model, near).double(), logits_of(model, x_adv).double()
                    clean, adversarial = ce(z, y), ce(z_adv, y)
                    found = [clean, adversarial, kl(z, z_adv), (clean - adversarial).abs()]
                total[index.cpu()] += torch.stack(found, 1).cpu()
    return total / draws


def correlation(a: Any, b: Any) -> float | None:
    """Pearson's; None where one of the two never changes or is not finite, or there are too few."""
    pair = np.asarray([a, b], float)
    if pair.shape[1] < LEAST or not np.isfinite(pair).all() or (np.ptp(pair, 1) <= 1e-12 * abs(pair).max(1)).any():
        return None
    return float(np.corrcoef(pair)[0, 1])


def rank_correlation(a: Any, b: Any) -> tuple[float | None, float | None, float | None]:
    """Spearman's, with the ends of its 95 % interval."""
    from scipy.stats import pearsonr, rankdata

    ranks = rankdata(a), rankdata(b)
    if (rank := correlation(*ranks)) is None:
        return None, None, None
    interval = pearsonr(*ranks).confidence_interval()
    return rank, float(interval.low), float(interval.high)


def split_of(losses: Tensor) -> Split:
    """Means and correlations of the losses of a split's images, [n, 4]."""
    means = dict(zip(("clean", "adversarial", "kl", "gap"), losses.mean(0).tolist(), strict=True))
    pair = losses[:, 2].numpy(), losses[:, 3].numpy()
    rank, low, high = rank_correlation(*pair)
    return Split(**means, rank=rank, low=low, high=high, pearson=correlation(*pair))


def kept_checkpoints(run: Run) -> list[Path]:
    """The checkpoints of epochs that a run kept, in order; raises RattleError if they are too few."""
    found = sorted(run.checkpoints.glob("epoch-*.safetensors"), key=lambda path: (len(path.name), path.name))
    if not found:
        raise RattleError(f"{run.folder} kept no checkpoints of its epochs: train it with --keep-checkpoints all")
    return found


def moments(
    saved: Sequence[Checkpoint], *, n: int, draws: int, seed: int, device: torch.device, advance: Advance
) -> list[Moment]:
    """Every checkpoint of one run, on the same n training and n test images."""
    recipe = saved[0].recipe
    data = recipe.data.load()
    parts = [part[choose_images(part.y, n)].to(device) for part in (data.train, data.test)]
    settings = {"attack": recipe.attack, "draws": draws, "seed": seed}
    found = []
    for checkpoint in saved:
        model, noise = load_model(checkpoint, device=device), recipe.noise.at("inner")
        train, test = (split_of(losses_of(model, part, noise=noise, **settings)) for part in parts)
        found.append(Moment(epoch=int(checkpoint.progress.get("epoch", 0)), train=train, test=test))
        advance()
    return found


def over_training(found: Sequence[Moment]) -> dict[str, dict[str, float | None]]:
    """The rank correlation over checkpoints of the mean KL on training images with the mean gap there, and with what
    the clean and the adversarial loss are higher by on test images."""
    against = {"gap": [moment.train.gap for moment in found]}
    against |= {name: [getattr(moment, name) for moment in found] for name in EXCESSES}
    means = [moment.train.kl for moment in found]
    return {
        name: dict(zip(("rank", "low", "high"), rank_correlation(means, values), strict=True))
        for name, values in against.items()
    }


def measure_gaps(
    folders: Sequence[Path | str],
    *,
    n: int = 500,
    draws: int = 1,
    seed: int = 0,
    device: str = "auto",
    trust_code: bool = False,
    console: Console | None = None,
) -> tuple[dict[str, dict[str, Any]], list[Path]]:
    """Measure every kept checkpoint of run folders on n training and n test images each; writes loss-gap.json into the
    results of each, and one picture of all as loss-gap.png and .svg. Returns what the files hold, by the runs' labels,
    and the first run's pictures.

    u is drawn `draws` times from the noise of the run's inner step; x' comes from the attack that the run trained with,
    unaugmented images. seed: of u and the attack; device: where to compute; trust_code: as for `load`.
    """
    check_settings(n, draws)
    if not folders:
        raise RattleError("name at least one run folder")
    runs, where = [open_run(folder, trust_code=trust_code) for folder in folders], choose_device(device)
    paths, found, drawn = [kept_checkpoints(opened.run) for opened in runs], {}, {}
    measure = partial(moments, n=n, draws=draws, seed=seed, device=where)
    for label, opened, kept in zip(labels(runs), runs, paths, strict=True):
        saved = [open_checkpoint(path, trust_code=trust_code) for path in kept]
        with (console or NullConsole()).progress(f"loss gaps of {label}", len(saved)) as advance:
            drawn[label] = measure(saved, advance=advance)
        recipe = opened.checkpoint.recipe
        plain = {"recipe": recipe.name, "run_seed": recipe.seed, "n": n, "draws": draws, "seed": seed}
        plain |= {"sigma": recipe.noise.at("inner").sigma, "checkpoints": [asdict(each) for each in drawn[label]]}
        plain |= {"over_training": over_training(drawn[label]), "answer": answer(label, drawn[label])}
        write_atomically(opened.run.loss_gap, json.dumps(plain).encode())
        found[label] = plain
    figure = plot(drawn)
    pictures = [plots.save(figure, opened.run.loss_gap.with_suffix(""), dpi=160) for opened in runs]
    return found, pictures[0]


def answer(label: str, found: Sequence[Moment]) -> str:
    """One sentence on a run."""

    def text(value: float | None) -> str:
        return "undefined" if value is None else f"{value:+.2f}"

    ranks = [moment.test.rank for moment in found if moment.test.rank is not None]
    images = f"{text(min(ranks))} to {text(max(ranks))}" if ranks else "undefined"
    over = over_training(found)
    return (
        f"{label}: over test images the rank correlation of the KL with the loss gap is {images} at {len(found)} "
        f"checkpoints; over these, that of the mean KL is {text(over['gap']['rank'])} with the mean gap, "
        f"{text(over['clean_excess']['rank'])} with the excess of the clean loss on test images and "
        f"{text(over['adversarial_excess']['rank'])} with that of the adversarial loss."
    )


def plot(runs: Mapping[str, Sequence[Moment]]) -> Figure:
    """Over epochs: the correlation over images with its interval; the mean KL and gap; the excess of both losses."""
    with rc_context(plots.STYLE):
        figure = Figure(figsize=(9.5, 6.6), layout="constrained")
        (images, means), (clean, adversarial) = figure.subplots(2, 2, sharex=True)
        for colour, (label, found) in zip(itertools.cycle(plots.LINES), runs.items(), strict=False):
            epochs, style = [moment.epoch for moment in found], {"color": colour, "marker": "o", "ms": 3}
            for part, line in (("test", "-"), ("train", ":")):
                splits: list[Split] = [getattr(moment, part) for moment in found]
                name = printable(label) if part == "test" else "_"
                images.plot(epochs, [numeric(each.rank) for each in splits], line, label=name, **style)
                if part == "test":
                    ends = [[numeric(getattr(each, end)) for each in splits] for end in ("low", "high")]
                    images.fill_between(epochs, *ends, color=colour, alpha=0.15, lw=0)
            means.plot(epochs, [moment.train.kl for moment in found], "-", **style)
            means.plot(epochs, [moment.train.gap for moment in found], "--", **style)
            clean.plot(epochs, [moment.clean_excess for moment in found], "-", **style)
            adversarial.plot(epochs, [moment.adversarial_excess for moment in found], "-", **style)
        images.set(title="over images: rank correlation of KL and gap", ylabel="— test, ··· training images")
        means.set(title="means, training images", ylabel="— KL,  - - loss gap")
        for axes, title in zip((clean, adversarial), EXCESSES.values(), strict=True):
            axes.set(title=f"{title}: test less training images", xlabel="epoch")
            axes.axhline(0, color=plots.FAINT, lw=0.8)
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        means.set_ylim(bottom=0)
        images.legend(frameon=False, fontsize=8)
    return figure


def numeric(value: float | None) -> float:
    """A gap in the line where there is no correlation."""
    return float("nan") if value is None else value
