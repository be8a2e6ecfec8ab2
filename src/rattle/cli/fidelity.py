"""rattle fidelity: where the Taylor expansion of a trained model holds, and where it does not."""

import json
from dataclasses import dataclass

from rattle.analysis.config import SIGMAS
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import RunPath, check_exists, parse
from rattle.runs.io import Plain


@dataclass(frozen=True)
class Options:
    """Measure the remainder of the expansion of g(w + u) after each order, against sigma, on clean and adversarial
    images: a table, results/fidelity.json and a plot. Above 1, an order is worse than g(w) alone. Then whether the
    run's Taylor terms have an effect of their own: their gradients beside the zeroth term's and label smoothing's."""

    path: RunPath  # a run folder or a checkpoint file
    sigmas: tuple[float, ...] = SIGMAS  # std of u to try
    draws: int = 4  # samples of u to average over
    n: int = 100  # test images, for the remainders
    batches: int = 8  # minibatches of test images, for the gradients of the Taylor terms
    batch_statistics: bool = False  # BatchNorm by the batch, as in training; as deployed when not given
    seed: int = 0
    device: str = "auto"  # cuda or cpu; auto takes what there is, a CPU in place of mps, which has no double precision
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own when not given
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that the run names as its model


def main(args: list[str]) -> None:
    options = parse(Options, args, "fidelity")
    check_exists(options.path)
    from rattle.analysis.taylor_error import measure_checkpoint

    settings = {name: value for name, value in vars(options).items() if name != "json"}
    found, pictures = measure_checkpoint(**settings, console=Console())
    if options.json:
        print(json.dumps(found))
        return
    rows = []
    for name, remainders in found["remainders"].items():
        for row in remainders:
            rows.append([name, f"{row['sigma']:g}", *(f"{row[part]:.3g}" for part in ("change", "first", "second"))])
    columns = ["images", "sigma", "change of g", "after 1st", "after 2nd"]
    print_table(columns, rows, title=f"{found['name']}: remainders")
    print("change = |g(w+u) - g(w)| / |g(w)|; remainders are relative to that change: 1 is g(w) alone, less is better.")
    if found["terms"]:
        print_terms(found)
    say(f"plot: {pictures[0]}")
    say(found["answer"])


def print_terms(found: Plain) -> None:
    """What the Taylor terms add to the gradient."""
    rows = []
    for term in found["terms"]:
        rows.append([f"{value:.3g}" if isinstance(value, float) else str(value or "") for value in term.values()])
    print_table(list(found["terms"][0]), rows, title=f"{found['recipe']}: what the Taylor terms add")
    print("over_zeroth: length over the zeroth's gradient; to_zeroth, to_smoothing: cosines with those gradients;")
    print("own: the part that neither zeroth nor smoothing explains; repeats: its cosine from batch to batch;")
    print("lasts: what is left of it on average over batches, over what is left of the zeroth's gradient, with the")
    print("95 % interval over batches; more of them (--batches) make it narrower.")
