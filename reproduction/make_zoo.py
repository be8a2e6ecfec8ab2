"""The models of the zoo: train, evaluate and pack each into src/rattle/runs/zoo (a quarter of an hour on one core).

    OMP_NUM_THREADS=1 python -m reproduction.make_zoo --out runs/zoo

A run that is there is not trained again. zoo.json holds, for each model, what is needed to build it, the commands that
made it, and what every attack left of the test images: one character an image, 1 where it is still right.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from rattle.cli.main import main as run_command
from rattle.evaluation.results import load_results
from rattle.runs.io import Plain, write_atomically
from rattle.runs.load import load_model, open_checkpoint
from rattle.runs.paths import Run
from rattle.runs.published import pack
from rattle.runs.source import environment
from rattle.runs.zoo import FOLDER

NAMED = (
    "digits-linf-cnn-at",
    "digits-linf-cnn-trades",
    "digits-linf-cnn-trades-2nd",
    "digits-linf-cnn-trades-awp-2nd",
    "digits-l2-cnn-trades-2nd",
)
# Attacks of one step of size 0, also to choose the checkpoint by: plain training, to compare the robust ones with.
NO_ATTACK = "--attack.steps 1 --attack.step-size 0 --attack.start none"
PLAIN = f"digits-linf-cnn-at --name digits-linf-cnn-plain {NO_ATTACK}"  # made by 0.2: its held-out images not attacked
MODELS = {name: name for name in NAMED} | {"digits-linf-cnn-plain": PLAIN}
ATTACKS = ("pgd20", "cw20", "autoattack")
KEPT = ("rattle", "python", "torch", "numpy", "threads")  # of the environment: what may move the numbers


def commands(name: str, out: Path) -> list[str]:
    folder = out / name
    return [
        f"rattle train {MODELS[name]} --out {folder}",
        f"rattle evaluate {folder} --attacks {' '.join(ATTACKS)}",
    ]


def bits(flags: tuple[float, ...]) -> str:
    return "".join(str(int(flag)) for flag in flags)


def make(name: str, out: Path) -> Plain:
    """One entry of zoo.json; writes the weights beside it."""
    run = Run(out / name)
    done = (run.checkpoint("last").is_file(), all((run.results / f"{attack}.json").is_file() for attack in ATTACKS))
    for command, there in zip(commands(name, out), done, strict=True):
        if not there and run_command(shlex.split(command)[1:]) != 0:
            raise SystemExit(f"failed: {command}")
    saved = open_checkpoint(run.folder)
    weights, config = pack(saved, load_model(saved))
    write_atomically(FOLDER / f"{name}.safetensors", weights)
    results, _ = load_results(run.results)
    found = {
        attack: {"accuracy": sum(result.flags) / len(result.flags), "flags": bits(result.flags)}
        | {"settings": {key: value for key, value in result.settings.items() if key != "components"}}
        for attack, result in ((attack, results[attack]) for attack in ATTACKS)
    }
    clean = results[ATTACKS[0]].clean
    return {
        "commands": commands(name, Path("runs/zoo")),
        "environment": {key: environment()[key] for key in KEPT},
        "config": config,
        "n": len(clean),
        "clean": {"accuracy": sum(clean) / len(clean), "flags": bits(clean)},
        "attacks": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("runs/zoo"))
    options = parser.parse_args()
    entries = {name: make(name, options.out) for name in MODELS}
    write_atomically(FOLDER / "zoo.json", (json.dumps(entries, indent=1) + "\n").encode())
    for name, entry in entries.items():
        attacked = "  ".join(f"{attack} {100 * entry['attacks'][attack]['accuracy']:.1f}" for attack in ATTACKS)
        print(f"{name}  clean {100 * entry['clean']['accuracy']:.1f}  {attacked}  (n={entry['n']})")


if __name__ == "__main__":
    main()
