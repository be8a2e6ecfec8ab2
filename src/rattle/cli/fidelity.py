"""rattle fidelity: where the Taylor expansion of a trained model holds, and where it does not."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from rattle.analysis.taylor_error import SIGMAS, measure_checkpoint
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse


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
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that the run names as its model


def main(args: list[str]) -> None:
    options = parse(Options, args, "fidelity")
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    found, pictures = measure_checkpoint(**settings, console=Console())
    if options.json:
        print(json.dumps(found))
        return
    rows = [
        [name, f"{row['sigma']:g}", *(f"{row[part]:.3g}" for part in ("change", "first", "second"))]
        for name, remainders in found["remainders"].items()
        for row in remainders
    ]
    columns = ["images", "sigma", "change of g", "after 1st", "after 2nd"]
    print_table(columns, rows, title=f"{found['recipe']}: remainders")
    print("change = |g(w+u) - g(w)| / |g(w)|; remainders are relative to that change: 1 is g(w) alone, less is better.")
    say(f"plot: {pictures[0]}")
