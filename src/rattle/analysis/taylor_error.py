"""Does the Taylor expansion hold? The remainder of g(w + u) after each order, against sigma, for a given model.

For u = sigma * v, v ~ N(0, I): change = ||g(w+u) - g(w)|| / ||g(w)||, and the remainder of order k is
||g(w+u) - sum of orders up to k|| / ||g(w+u) - g(w)||: 1 for order 0, below 1 where an order helps, above 1 where the
expansion makes things worse (paper, Section 4). Everything is computed in double precision.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from rattle.analysis import plots
from rattle.analysis.config import SIGMAS
from rattle.analysis.term_gradients import measure_terms
from rattle.data.dataset import choose_images
from rattle.errors import RattleError
from rattle.evaluation.target import target_from_checkpoint
from rattle.inputs import floats_for, logits_of
from rattle.randomness import ImageStreams
from rattle.runs.distributed import choose_device
from rattle.runs.io import Plain, write_json
from rattle.runs.load import open_checkpoint
from rattle.runs.paths import printable
from rattle.runs.progress import SILENT, Console
from rattle.taylor import directional
from rattle.weights import Noise, frozen_bn_stats, perturbed

# sigma, and means over the draws of u: change, ||g(w+u) - g(w)|| / ||g(w)||; first and second, the remainders after
# these orders, relative to the change
Remainder = dict[str, float]


def remainders(
    model: nn.Module,
    x: Tensor,
    *,
    sigmas: Sequence[float] = SIGMAS,
    draws: int = 4,
    seed: int = 0,
    batch_statistics: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> list[Remainder]:
    """The remainders on images x at each of `sigmas`, means over `draws` samples of u seeded by `seed`.

    `batch_statistics` lets BatchNorm normalise by the batch, as in training, instead of by its running statistics;
    `progress` is called after each sigma of each draw.
    """
    if draws < 1 or not sigmas or min(sigmas) <= 0:
        raise RattleError(f"draws must be >= 1 and every sigma > 0, got {draws} and {list(sigmas)}")
    model, x = copy.deepcopy(model).double(), x.double()
    unit = Noise(sigma=1.0)
    sums = torch.zeros(len(sigmas), 3, dtype=torch.float64, device=x.device)
    model.train(batch_statistics)
    with frozen_bn_stats(model), torch.no_grad():
        g = logits_of(model, x)
        for draw in range(draws):
            v = unit(model, generator=torch.Generator().manual_seed(seed + draw))
            first, second = directional(model, x, v, 2)
            for row, sigma in enumerate(sigmas):
                with perturbed(model, {name: sigma * d for name, d in v.items()}):
                    moved = logits_of(model, x) - g
                after_first, change = moved - sigma * first, moved.norm()
                after_second = after_first - 0.5 * sigma**2 * second
                sums[row] += torch.stack([change / g.norm(), after_first.norm() / change, after_second.norm() / change])
                progress()
    rows = []
    for sigma, (change, first, second) in zip(sigmas, (sums / draws).tolist(), strict=True):
        rows.append({"sigma": sigma, "change": change, "first": first, "second": second})
    return rows


def measure_checkpoint(
    path: Path | str,
    *,
    sigmas: Sequence[float] = SIGMAS,
    draws: int = 4,
    n: int = 100,
    seed: int = 0,
    batches: int = 8,
    batch_statistics: bool = False,
    device: str = "auto",
    out: Path | str | None = None,
    trust_code: bool = False,
    console: Console = SILENT,
) -> tuple[Plain, list[Path]]:
    """Measure a run folder's or checkpoint's remainders on n test images, and what its Taylor terms add to the gradient
    on `batches` minibatches of them; writes fidelity.json, .png and .svg.

    Adversarial images come from the attack the model was trained with. Files go to the folder `out`, or else to the
    run's results; trust_code is as for `load`; the other parameters are those of `remainders`. Returns what the JSON
    file holds, and the pictures. device: where to compute; auto takes a GPU, but not mps, without double precision.
    """
    saved, found = open_checkpoint(path, trust_code=trust_code), choose_device(device)
    target = target_from_checkpoint(saved, device="cpu" if found.type == "mps" else str(found))
    recipe = saved.recipe
    images = target.images(choose_images(target.test.y, n))
    x, y = floats_for(target.model, images.x), images.y
    x_adv = recipe.attack(target.model, x, y, generator=ImageStreams(seed, torch.arange(len(y), device=y.device)))
    with console.progress("fidelity", 2 * draws * len(sigmas)) as advance:
        of = partial(
            remainders,
            target.model,
            sigmas=sigmas,
            draws=draws,
            batch_statistics=batch_statistics,
            seed=seed,
            progress=advance,
        )
        found = {"clean": of(x), "adversarial": of(x_adv)}
    folder = Path(out) if out else target.results
    plain = target.metadata | {"name": target.name, "seed": seed, "n": len(y), "draws": draws, "remainders": found}
    plain |= measure_terms(target, recipe, batches=batches, seed=seed)
    write_json(folder / "fidelity.json", plain)
    return plain, plots.save_figure(
        plot_remainders(found, recipe.noise.sigma, target.name), folder / "fidelity", dpi=160
    )


def plot_remainders(found: dict[str, list[Remainder]], sigma: float, title: str) -> Figure:
    """Remainder against sigma, clean and adversarial side by side; the run's own sigma is marked if it has one."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    figure.suptitle(printable(title), parse_math=False)
    for axis, (name, rows) in zip(figure.subplots(1, len(found), sharey=True), found.items(), strict=True):
        sigmas = [row["sigma"] for row in rows]
        shown = [*sigmas, sigma] if sigma else sigmas
        limits = min(shown) / 2, max(shown) * 2  # a width where there is one sigma, too
        axis.set(xscale="log", yscale="log", xlim=limits, title=f"{name} images", xlabel="sigma of the weight noise u")
        axis.axhline(1, color="0.6", linewidth=1, label="order 0: g(w) alone")
        axis.plot(sigmas, [row["first"] for row in rows], "o-", color="#b35806", label="after the first order")
        axis.plot(sigmas, [row["second"] for row in rows], "s-", color="#1b7837", label="after the second order")
        if sigma:
            axis.axvline(sigma, color="#2166ac", linestyle=":", label=f"this run's sigma = {sigma:g}")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("remainder / ||g(w+u) - g(w)||")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure
