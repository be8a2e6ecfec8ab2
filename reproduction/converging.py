"""Curves of the same training on one rank and on two, by the protocol of reproduction/studies/converging.md.

    python -m reproduction.converging --out reproduction/results/converging-digits.json

Trains each network by each seed on one rank and on two, writes every epoch's losses and accuracies, prints how far they
are apart, and exits with code 1 if that is too far. `--stored FILE` compares with the curves of earlier code too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import rattle
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.runs.io import write_atomically

EXACT, LOCAL = "cnn-plain", "cnn"  # without BatchNorm, in double precision | each rank normalises by its own images
SAME = 1e-6  # of a loss: what rounding in double precision may make of an epoch's mean
FAR = 3.0  # standard errors of the mean difference over seeds
SETTINGS = {"width": 8, "epochs": 5, "batch_size": 64, "threads": 1, "evaluate_every": 1, "device": "cpu"}


def recipe_of(network: str, seed: int) -> Recipe:
    recipe = rattle.get_recipe("digits-linf-cnn-trades-2nd")
    data, threat = replace(recipe.data, train_size=512, val_size=200), replace(recipe.attack.threat, epsilon=0.1)
    attacks = {
        "attack": replace(recipe.attack, threat=threat, steps=5, step_size=0.03),
        "val_attack": replace(recipe.val_attack, steps=5, step_size=0.03),
    }
    if network == EXACT:  # without BatchNorm it learns from normalised images and at a higher rate alone
        recipe = replace(recipe, normalise=True, optimizer=replace(recipe.optimizer, lr=0.5))
    return replace(recipe, **SETTINGS, **attacks, model=network, seed=seed, data=data)


def work(folder: Path, seeds: int) -> None:
    """Train all of them, as one of the ranks."""
    with distributed.process_group():
        for network in (EXACT, LOCAL):
            torch.set_default_dtype(torch.float64 if network == EXACT else torch.float32)
            for seed in range(seeds):
                rattle.fit(recipe_of(network, seed), folder / network / str(seed), log="none")


def curves(ranks: int, seeds: int) -> dict[str, list[list[dict[str, float]]]]:
    """By network, for each seed, for each epoch, what metrics.jsonl says."""
    front = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}" if ranks > 1 else ""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, *front.split(), __file__, "--work", place, "--seeds", str(seeds)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return {
            network: [
                [json.loads(line) for line in Path(place, network, str(seed), "metrics.jsonl").read_text().splitlines()]
                for seed in range(seeds)
            ]
            for network in (EXACT, LOCAL)
        }


def apart(one: list, other: list) -> float:
    """The largest relative difference of any loss of any epoch and seed."""
    pairs = [(a["loss"], b["loss"]) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    return max(abs(a - b) / abs(a) for a, b in pairs)


def paired(one: list, other: list, name: str) -> tuple[float, float]:
    """Mean and standard error over seeds of the difference of the last epoch."""
    differences = [y[-1][name] - x[-1][name] for x, y in zip(one, other, strict=True)]
    return statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5


def judge(found: dict, stored: dict | None) -> bool:
    """Print what was found; whether it is near enough."""
    good = (distance := apart(found["1"][EXACT], found["2"][EXACT])) < SAME
    print(f"{EXACT}, double precision: losses on 1 and 2 ranks differ by at most {distance:.1e} of themselves")
    for name in ("loss", "val_clean", "val_robust"):
        mean, error = paired(found["1"][LOCAL], found["2"][LOCAL], name)
        good &= abs(mean) <= FAR * error
        print(f"{LOCAL}, local statistics: {name} on 2 ranks minus 1, last epoch: {mean:+.4f} ± {error:.4f} (s.e.)")
    for ranks, known in (stored or {}).items():
        distance = apart(known[EXACT], found[ranks][EXACT])
        good &= distance < SAME
        print(f"{EXACT}, {ranks} rank(s): losses differ from the stored ones by at most {distance:.1e} of themselves")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, help="write the curves there")
    parser.add_argument("--stored", type=Path, help="curves of earlier code")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.seeds)
        return
    found = {str(ranks): curves(ranks, options.seeds) for ranks in (1, 2)}
    if options.out:
        plain = {"recipe": recipe_of(LOCAL, 0).to_yaml(), "seeds": options.seeds, "curves": found}
        write_atomically(options.out, json.dumps(plain, indent=1).encode())
    stored = json.loads(options.stored.read_text())["curves"] if options.stored else None
    sys.exit(0 if judge(found, stored) else 1)


if __name__ == "__main__":
    main()
