"""rattle demo: the whole path on the embedded digits, in about two minutes."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rattle.cli.console import say
from rattle.cli.options import parse


@dataclass(frozen=True)
class Options:
    """Train TRADES and TRADES + first- and second-order Taylor terms on 8x8 digits from one seed, and compare them."""

    out: str = "runs/demo"  # folder for the two runs; an earlier demo there is replaced
    seed: int = 0
    epochs: int = 20  # of each run; the recipes' own 30 give a little more accuracy


def main(args: list[str]) -> None:
    options = parse(Options, args, "demo")
    import torch

    torch.set_num_threads(1)  # the networks are too small for two, which spin while they wait for a busy core
    seed, epochs, page = str(options.seed), str(options.epochs), Path(options.out) / "report.html"
    folders = []
    for method in ("trades", "trades-2nd"):
        folder = str(Path(options.out) / method)
        recipe = f"digits-linf-cnn-{method}"
        run_command("train", recipe, "--epochs", epochs, "--seed", seed, "--out", folder, "--overwrite")
        run_command("evaluate", folder, "--attacks", "pgd20", "cw20", "--seed", seed)
        folders.append(folder)
    run_command("compare", *folders)
    run_command("report", *folders, "--out", str(page))
    say(f"\nThe report: {page.resolve()}\n\nTry next:")
    say(f"  rattle evaluate {folders[1]} --attacks autoattack --n 200")
    say("  rattle train digits-linf-cnn-trades-awp-2nd --objective.taylor.eta 0.3 --epochs 10 --out runs/awp")
    say("  rattle recipes")


def run_command(command: str, *words: str) -> None:
    """Run another command, and show how it is called."""
    say(f"\n$ rattle {command} {' '.join(words)}")
    import_module(f"rattle.cli.{command}").main(list(words))
