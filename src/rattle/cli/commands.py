"""The commands by group: what each does in a line, and two examples, which its help begins with."""

from typing import NamedTuple


class Command(NamedTuple):
    """A row of `rattle --help`."""

    group: str
    line: str
    examples: tuple[str, str]  # without the word rattle


COMMANDS = {
    "demo": Command("train", "train two methods on embedded digits, compare them", ("demo", "demo --epochs 5")),
    "harden": Command(
        "train",
        "make a trained classifier robust",
        (
            "harden --model net.py:build --weights w.pt --data FOLDER --epsilon 4/255 --out runs/hardened",
            "harden --model timm:resnet18 --weights w.pt --data FOLDER --clean-drop 1",
        ),
    ),
    "train": Command(
        "train",
        "train a recipe, or your own network on your own images",
        ("train digits-linf-cnn-trades --out runs/a", "train runs/a --epochs 60 --resume"),
    ),
    "sweep": Command(
        "train",
        "train a grid of settings and seeds",
        (
            "sweep digits-linf-cnn-trades --seeds 0 1 2",
            "sweep digits-linf-cnn-trades-2nd --objective.taylor.eta 0.1 0.2 --jobs 2",
        ),
    ),
    "frontier": Command(
        "train",
        "compare methods at equal clean accuracy",
        (
            "frontier digits-linf-cnn-trades digits-linf-cnn-trades-awp --seeds 0 1 2",
            "frontier --between runs/a runs/b --points 7",
        ),
    ),
    "paper": Command(
        "train",
        "train and attack a table of the paper",
        ("paper 1 --scale tiny", "paper 2 --scale full --launcher slurm --yes"),
    ),
    "evaluate": Command(
        "measure",
        "attack a model and save what each image withstood",
        (
            "evaluate runs/a --attacks pgd20 autoattack --n 1000",
            "evaluate --model net.py:build --weights w.pt --data images.npz --attacks autoattack",
        ),
    ),
    "compare": Command(
        "measure",
        "test which of several models is better",
        ("compare runs/a runs/b", "compare plain.pt-results runs/a runs/b --baseline plain.pt-results"),
    ),
    "transfer": Command(
        "measure",
        "attack one model with another's adversarial images",
        ("transfer --from runs/a --to runs/b", "transfer --from runs/a --to runs/b --attacks cw20 --n 500"),
    ),
    "fidelity": Command(
        "measure",
        "measure how well the Taylor expansion holds",
        ("fidelity runs/a", "fidelity runs/a --n 200 --batches 16"),
    ),
    "gap": Command(
        "measure",
        "measure the KL beside the loss gap (Appendix C)",
        ("gap runs/a", "gap runs/a runs/b --n 1000"),
    ),
    "report": Command(
        "show",
        "write one HTML page that works offline",
        ("report runs/a", "report runs/a runs/b --out report.html"),
    ),
    "table": Command(
        "show",
        "print runs as Markdown, LaTeX or CSV",
        ("table runs/a runs/b", "table sweeps/eta/* --format latex --out table.tex"),
    ),
    "landscape": Command(
        "show",
        "draw the loss around images and weights",
        ("landscape runs/a", "landscape runs/a runs/b --images 4"),
    ),
    "recipes": Command("show", "list methods and recipes", ("recipes", "recipes cifar10-l2")),
    "data": Command("show", "download or show a dataset", ("data get cifar10", "data show digits")),
    "doctor": Command("show", "check the installation", ("doctor", "doctor > doctor.txt")),
    "export": Command(
        "share",
        "write safetensors, TorchScript or ONNX",
        ("export runs/a", "export runs/a --format onnx --out model.onnx"),
    ),
    "push": Command(
        "share",
        "publish a run with its model card",
        ("push runs/a owner/name --to published", "push runs/a owner/name --license mit"),
    ),
}


def usage() -> str:
    """What `rattle --help` prints: one screen."""
    rows, before = [], ""
    for name, command in COMMANDS.items():
        rows.append(f"{command.group if command.group != before else '':<8} {name:<10} {command.line}")
        before = command.group
    return "\n".join(
        [
            "usage: rattle COMMAND [options]     (rattle COMMAND --help: examples, options)",
            *rows,
            "With any command, `--plugin FILE.py` first runs a file that registers your parts.",
            "`rattle --version`; `rattle --tyro-print-completion bash` (zsh, tcsh) for your shell.",
        ]
    )


def command_examples(name: str) -> str:
    """The first lines of a command's help."""
    return "examples:\n" + "".join(f"  rattle {words}\n" for words in COMMANDS[name].examples)
