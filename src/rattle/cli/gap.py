"""rattle gap: the paper's Appendix C over the training of runs, KL beside loss gaps and what is not generalised."""

import json
from dataclasses import dataclass

from rattle.cli.console import Console, print_table, say
from rattle.cli.options import RunPaths, check_exists, parse

GAP_COLUMNS = ["epoch", "KL", "loss gap", "correlation, training", "test", "95 %", "clean excess", "adversarial excess"]


@dataclass(frozen=True)
class Options:
    """Correlate KL(f(x) || f(x')) with the gap between clean and adversarial loss, at every checkpoint that runs kept
    (--keep-checkpoints paper or all): over training and test images, and over checkpoints with the excess of either
    loss on test images. A table, results/loss-gap.json in each run, and one plot of all."""

    runs: RunPaths  # run folders
    n: int = 500  # training images, and as many test images
    draws: int = 1  # samples of u, of the noise in the run's inner step, to average over
    seed: int = 0  # of u and of the attack, which is the one of the run's training
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    json: bool = False  # print the results as one JSON object on stdout, and nothing else
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a run names as its model


def main(args: list[str]) -> None:
    options = parse(Options, args, "gap")
    check_exists(*options.runs)
    from rattle.analysis.loss_gap import measure_gaps

    settings = {name: value for name, value in vars(options).items() if name not in ("runs", "json")}
    found, pictures = measure_gaps(options.runs, **settings, console=Console())
    if options.json:
        print(json.dumps(found))
        return
    for label, plain in found.items():
        print_table(GAP_COLUMNS, [gap_row(moment) for moment in plain["checkpoints"]], title=f"{label}, n {plain['n']}")
    say("KL, gap: means on training images; correlation: Spearman's over images; excess: loss on test less training.")
    say(f"plot: {pictures[0]}")
    for plain in found.values():
        say(plain["answer"])


def gap_row(moment: dict) -> list[str]:
    """One checkpoint in the table."""
    train, test = moment["train"], moment["test"]
    ranks = ["" if each["rank"] is None else f"{each['rank']:.2f}" for each in (train, test)]
    interval = "" if test["low"] is None else f"{test['low']:.2f} to {test['high']:.2f}"
    excess = [f"{test[name] - train[name]:+.3f}" for name in ("clean", "adversarial")]
    return [str(moment["epoch"]), f"{train['kl']:.3g}", f"{train['gap']:.3g}", *ranks, interval, *excess]
