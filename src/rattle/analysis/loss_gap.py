"""The paper's Appendix C, measured: does the KL go with the gap between losses, and that with what is not generalised?

Lemma C.3, of two classes: |L(f(x), y) - L(f(x'), y)| is positively correlated with KL(f(x) || f(x')), both at w + u,
and "approximately" so of more classes. Proposition C.1 bounds the loss on new images less that on training images,
clean and adversarial, and a small KL is to make the bound small. Both are measured at every checkpoint that a run kept:
the first over images, the second over checkpoints.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor, nn

from rattle.analysis import plots
from rattle.analysis.prepare import labels, open_runs
from rattle.attacks import PGD
from rattle.data import Images
from rattle.data.dataset import choose_images
from rattle.errors import RattleError
from rattle.inputs import floats_for, logits_of
from rattle.losses import ce, kl
from rattle.randomness import ImageStreams
from rattle.runs.distributed import choose_device
from rattle.runs.io import Plain, write_json
from rattle.runs.load import load_model, open_checkpoint
from rattle.runs.paths import Run, printable
from rattle.runs.progress import SILENT, Console
from rattle.weights import Noise, perturbed

LEAST = 4  # images or checkpoints that a correlation takes
NAMES = ("clean", "adversarial", "kl", "gap")  # L(f(x), y), L(f(x'), y), KL(f(x) || f(x')), |difference of the losses|
Losses = Plain  # epoch; train and test: the means of NAMES, and the correlation of kl with gap over images


def losses_of(
    model: nn.Module, images: Images, *, attack: PGD, noise: Noise, draws: int = 1, seed: int = 0, batch: int = 250
) -> Tensor:
    """Of each image the clean loss, the adversarial loss, the KL and the gap, [n, 4], means over `draws` samples of u.

    `attack` climbs at w + u, as in training, with what `seed` gives to each image; `noise` draws u. `batch`: images at
    a time; the result does not depend on it.
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


def correlation(a: Any, b: Any) -> dict[str, float | None]:
    """Spearman's correlation `rank` with its 95 % interval (Fisher's, of the ranks).

    All are None where one of the two never changes or is not finite, or there are too few.
    """
    from scipy.stats import pearsonr, rankdata

    pair = np.asarray([a, b], float)
    constant = np.ptp(pair, 1) <= 1e-12 * abs(pair).max(1)
    if pair.shape[1] < LEAST or not np.isfinite(pair).all() or constant.any():
        return dict.fromkeys(("rank", "low", "high"))
    found: Any = pearsonr(rankdata(a), rankdata(b))
    interval = found.confidence_interval()
    return {"rank": float(found.statistic), "low": float(interval.low), "high": float(interval.high)}


def split_of(losses: Tensor) -> dict[str, float | None]:
    """Means and correlation of the losses of training or test images, [n, 4]."""
    means = dict(zip(NAMES, losses.mean(0).tolist(), strict=True))
    return means | correlation(*losses[:, 2:].T.numpy())


def kept_checkpoints(run: Run) -> list[Path]:
    """The checkpoints of epochs that a run kept, in order; raises RattleError if there are none."""
    found = sorted(run.checkpoints.glob("epoch-*.safetensors"), key=lambda path: (len(path.name), path.name))
    if not found:
        raise RattleError(f"{run.folder} kept no checkpoints of its epochs: train it with --keep-checkpoints all")
    return found


def excess(found: Sequence[Losses], name: str) -> list[float]:
    """By how much a loss is higher on test than on training images, checkpoint by checkpoint."""
    return [moment["test"][name] - moment["train"][name] for moment in found]


def over_training(found: Sequence[Losses]) -> dict[str, dict[str, float | None]]:
    """The correlations over checkpoints of the mean KL on training images with the mean gap there, and with what the
    clean and the adversarial loss are higher by on test images."""
    gaps = [moment["train"]["gap"] for moment in found]
    others = {"gap": gaps, "clean_excess": excess(found, "clean"), "adversarial_excess": excess(found, "adversarial")}
    means = [moment["train"]["kl"] for moment in found]
    return {name: correlation(means, values) for name, values in others.items()}


def measure_gaps(
    folders: Sequence[Path | str],
    *,
    n: int = 500,
    draws: int = 1,
    seed: int = 0,
    device: str = "auto",
    trust_code: bool = False,
    console: Console = SILENT,
) -> tuple[dict[str, Plain], list[Path]]:
    """Measure every kept checkpoint of run folders on n training and n test images each; writes loss-gap.json into the
    results of each, and one picture of all as loss-gap.png and .svg. Returns what the files hold, by the runs' labels,
    and the first run's pictures.

    u is drawn `draws` times from the noise of the run's inner step; x' comes from the attack that the run trained with,
    unaugmented images. seed: of u and the attack; device: where to compute; trust_code: as for `load`.
    """
    if n < LEAST or draws < 1:
        raise RattleError(f"n must be >= {LEAST} and draws >= 1, got {n} and {draws}")
    runs, where = open_runs(folders, trust_code=trust_code), choose_device(device)
    paths = [kept_checkpoints(opened.run) for opened in runs]
    found = {}
    for label, opened, kept in zip(labels(runs), runs, paths, strict=True):
        recipe = opened.checkpoint.recipe
        noise = recipe.noise.at("inner")
        data, measured = recipe.data.load(), []
        parts = {"train": data.train, "test": data.test}
        parts = {name: part[choose_images(part.y, n)].to(where) for name, part in parts.items()}
        with console.progress(f"loss gaps of {label}", len(kept)) as advance:
            for path in kept:
                saved = open_checkpoint(path, trust_code=trust_code)
                model = load_model(saved, device=where)
                moment: Losses = {"epoch": int(saved.progress.get("epoch", 0))}
                for name, images in parts.items():
                    losses = losses_of(model, images, attack=recipe.attack, noise=noise, draws=draws, seed=seed)
                    moment[name] = split_of(losses)
                measured.append(moment)
                advance()
        found[label] = {
            "recipe": recipe.name,
            "run_seed": recipe.seed,
            "n": n,
            "draws": draws,
            "seed": seed,
            "sigma": noise.sigma,
            "checkpoints": measured,
            "over_training": over_training(measured),
            "answer": gap_answer(label, measured),
        }
        write_json(opened.run.loss_gap, found[label])
    figure = plot_gaps({label: plain["checkpoints"] for label, plain in found.items()})
    pictures = [plots.save_figure(figure, opened.run.loss_gap.with_suffix(""), dpi=160) for opened in runs]
    return found, pictures[0]


def gap_answer(label: str, found: Sequence[Losses]) -> str:
    """One sentence on a run."""

    def text(value: float | None) -> str:
        return "undefined" if value is None else f"{value:+.2f}"

    last = found[-1]
    over = {name: text(values["rank"]) for name, values in over_training(found).items()}
    return (
        f"{label}: over test images the rank correlation of the KL with the loss gap is {text(last['test']['rank'])} "
        f"at epoch {last['epoch']}; over {len(found)} checkpoints, that of the mean KL is {over['gap']} with the mean "
        f"gap, {over['clean_excess']} with the excess of the clean loss on test images and "
        f"{over['adversarial_excess']} with that of the adversarial loss."
    )


def plot_gaps(runs: Mapping[str, Sequence[Losses]]) -> Figure:
    """Over epochs: the correlation over images with its interval; the mean KL and gap; the excess of both losses."""
    with rc_context(plots.STYLE):
        figure = Figure(figsize=(9.5, 6.6), layout="constrained")
        (images, means), (clean, adversarial) = figure.subplots(2, 2, sharex=True)
        for colour, (label, found) in zip(itertools.cycle(plots.LINES), runs.items(), strict=False):
            epochs = [moment["epoch"] for moment in found]
            style: Any = {"color": colour, "marker": "o", "ms": 3}
            train, test = ([moment[part] for moment in found] for part in ("train", "test"))
            # None becomes NaN: a gap in the line
            rank, low, high = (np.array([each[name] for each in test], float) for name in ("rank", "low", "high"))
            images.plot(epochs, rank, "-", label=printable(label), **style)
            images.fill_between(epochs, low, high, color=colour, alpha=0.15, lw=0)
            means.plot(epochs, [each["kl"] for each in train], "-", **style)
            means.plot(epochs, [each["gap"] for each in train], "--", **style)
            clean.plot(epochs, excess(found, "clean"), "-", **style)
            adversarial.plot(epochs, excess(found, "adversarial"), "-", **style)
        images.set(title="over test images: rank correlation of KL and gap")
        means.set(title="means, training images", ylabel="— KL,  - - loss gap", ylim=(0, None))
        clean.set(title="clean loss: test less training images", xlabel="epoch")
        adversarial.set(title="adversarial loss: test less training images", xlabel="epoch")
        images.legend(frameon=False, fontsize=8)
    return figure
