"""rattle fidelity: where the Taylor expansion of a trained model holds, and where it does not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from rattle.analysis.taylor_error import SIGMAS, fidelity, plot, to_plain
from rattle.cli.console import Console, print_table
from rattle.cli.options import parse
from rattle.data import to_float
from rattle.evaluation.target import target_from_checkpoint
from rattle.randomness import ImageStreams
from rattle.runs.io import write_atomically
from rattle.runs.load import open_checkpoint


@dataclass(frozen=True)
class Options:
    """Measure the remainder of the expansion of g(w + u) after each order, against sigma, on clean and adversarial
    images: a table, results/fidelity.json and a plot. Above 1, an order is worse than g(w) alone."""

    path: Annotated[str, tyro.conf.Positional]  # a run folder or a checkpoint file
    sigmas: tuple[float, ...] = SIGMAS  # standard deviations of u to try
    draws: int = 4  # samples of u to average over
    n: int = 100  # test images
    batch_statistics: bool = False  # BatchNorm by the batch, as in training; as deployed when not given
    seed: int = 0
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own when not given


def main(args: list[str]) -> None:
    options = parse(Options, args, "fidelity")
    target, recipe, console = target_from_checkpoint(options.path), open_checkpoint(options.path).recipe, Console()
    model, images = target.model, target.images(options.n)
    x, y = to_float(images.x), images.y
    x_adv = recipe.attack(model, x, y, generator=ImageStreams(options.seed, torch.arange(len(y), device=y.device)))
    with console.progress("fidelity", 2 * options.draws * len(options.sigmas)) as advance:
        found = fidelity(
            model,
            x,
            x_adv,
            sigmas=options.sigmas,
            noise=recipe.noise,
            draws=options.draws,
            seed=options.seed,
            batch_statistics=options.batch_statistics,
            progress=advance,
        )
    folder = Path(options.out) if options.out else target.results
    told = target.metadata | {"seed": options.seed, "n": len(y), "draws": options.draws, "remainders": to_plain(found)}
    write_atomically(folder / "fidelity.json", json.dumps(told).encode())
    pictures = plot(found, folder / "fidelity", sigma=recipe.noise.sigma or None)
    if options.json:
        print(json.dumps(told))
        return
    rows = [
        [name, f"{r.sigma:g}", f"{r.change:.3g}", f"{r.first:.3g}", f"{r.second:.3g}"]
        for name, remainders in found.items()
        for r in remainders
    ]
    print_table(["images", "sigma", "change of g", "after 1st", "after 2nd"], rows, title=f"{recipe.name}: remainders")
    print("change = |g(w+u) - g(w)| / |g(w)|; remainders are relative to that change: 1 is g(w) alone, less is better.")
    print(f"plot: {pictures[0]}")
