"""rattle fidelity: where the Taylor expansion of a trained model holds, and where it does not."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rattle.analysis.taylor_error import SIGMAS, check_draws, measure_checkpoint
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse
from rattle.data.dataset import check_count


@dataclass(frozen=True)
class Options:
    """Measure the remainder of the expansion of g(w + u) after each order, against sigma, on clean and adversarial
    images: a table, results/fidelity.json and a plot. Above 1, an order is worse than g(w) alone. Then whether the
    run's Taylor terms do something of their own: their gradients beside the zeroth term's and label smoothing's."""

    path: Annotated[str, tyro.conf.Positional]  # a run folder or a checkpoint file
    sigmas: tuple[float, ...] = SIGMAS  # standard deviations of u to try
    draws: int = 4  # samples of u to average over
    n: int = 100  # test images, for the remainders
    batches: int = 8  # minibatches of test images, for the gradients of the Taylor terms
    batch_statistics: bool = False  # BatchNorm by the batch, as in training; as deployed when not given
    seed: int = 0
    device: str = "auto"  # cuda or cpu; auto takes what there is, a CPU in place of mps, which has no double precision
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own when not given
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that the run names as its model


def read(args: list[str]) -> Options:
    """The options; raises RattleError for what takes no model to refuse."""
    options = parse(Options, args, "fidelity")
    check_count(options.n)
    check_draws(options.draws, options.sigmas)
    return options


def main(args: list[str]) -> None:
    options = read(args)
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
    print_table(columns, rows, title=f"{found['name']}: remainders")
    print("change = |g(w+u) - g(w)| / |g(w)|; remainders are relative to that change: 1 is g(w) alone, less is better.")
    if found["terms"]:
        print_terms(found)
    say(f"plot: {pictures[0]}")
    say(found["answer"])


def print_terms(found: dict[str, Any]) -> None:
    """What the Taylor terms add to the gradient."""
    columns = {
        "over_zeroth": "over zeroth",
        "to_zeroth": "cosine to it",
        "to_smoothing": "to smoothing",
        "own": "its own",
        "repeats": "repeats",
        "lasts": "lasts",
        "lasts_low": "at least",
        "lasts_high": "at most",
        "gaps_repeat": "gaps repeat",
    }
    rows = [[row["name"], *("" if row[n] is None else f"{row[n]:.3g}" for n in columns)] for row in found["terms"]]
    print_table(["gradient of", *columns.values()], rows, title=f"{found['recipe']}: what the Taylor terms add")
    print("its own: the part that neither zeroth nor smoothing explains; repeats: its cosine from batch to batch;")
    print("lasts: what is left of it on average over batches, over what is left of the zeroth's gradient, with the")
    print("95 % interval over batches; more of them (--batches) make it narrower.")
