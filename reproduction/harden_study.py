"""`rattle.harden` on three classifiers that were trained normally first, beside training from scratch at the same cost.

    python -m reproduction.harden_study cifar10.npz svhn-mini.npz --out runs/harden-study

With --gather it writes results/harden-study.json, prints the tables of docs/studies/harden.md and trains nothing. The
protocol, fixed before the first run, stands there too. The case svhn needs timm. A study that was stopped resumes with
the case that was under way; no case begins after --minutes of CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples import plain_classifier
from rattle.attacks import PGD, AutoAttack
from rattle.data import Augment, Dataset
from rattle.data.dataset import balanced_indices, choose_images
from rattle.data.registry import Data
from rattle.evaluation.evaluate import evaluate
from rattle.models.registry import create_model
from rattle.recipes.catalog import NO_AUGMENT, make_recipe
from rattle.recipes.recipe import SGD, AdamW, Recipe
from rattle.recipes.schedules import Cosine
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.source import environment
from rattle.stats import summarise, t_interval
from rattle.threat import Threat
from rattle.training.harden import Hardened, harden
from rattle.training.loop import fit

SEEDS = (0, 1, 2)
NORMALISATION = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
AT_HAND, HELD_OUT = 6_400, 1_000  # of the images that the two colour networks were trained on; of none
TEST_IMAGES, AUTOATTACK_IMAGES = 1_000, 200
ATTACKS = ("clean", "pgd20", "autoattack")
RESULTS = Path(__file__).parent / "results" / "harden-study.json"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, its images, how it is trained normally, and what is asked of `harden`."""

    model: str
    data: Data
    rate: SGD | AdamW  # from scratch, plain and robust
    epochs: int  # of the plain training
    batch_size: int
    epsilon: float
    clean_drop: float


def cases(options: argparse.Namespace) -> dict[str, Case]:
    """The three cases, in the order in which they are run for a seed."""
    colour = {"batch_size": 64, "epsilon": 4 / 255, "clean_drop": 10.0}
    split: dict[str, Any] = {"val_size": HELD_OUT, "split_seed": 0}
    return {
        "digits48": Case(
            model="examples/plain_classifier.py:build",
            data=Data(name=str(options.out / "digits48"), val_size=0, augment=NO_AUGMENT),
            rate=SGD(lr=0.1),
            epochs=20,
            batch_size=32,
            epsilon=8 / 255,
            clean_drop=2.0,
        ),
        "cifar10": Case(
            model="cnn-strided",
            data=Data(name=str(options.cifar10), train_size=20_000, augment=Augment(pad=4, flip=True), **split),
            rate=SGD(lr=0.1),
            epochs=15,
            **colour,
        ),
        "svhn": Case(
            model="timm:test_convnext",
            data=Data(name=str(options.svhn), augment=NO_AUGMENT, **split),
            rate=AdamW(lr=1e-3),
            epochs=20,
            **colour,
        ),
    }


def plain_recipe(case: Case, seed: int) -> Recipe:
    """Training without an adversary."""
    changes: dict[str, Any] = {"optimizer": case.rate, "schedule": Cosine(warmup=0.1), "epochs": case.epochs}
    return make_recipe(
        "standard",
        data=case.data,
        model=case.model,
        epsilon=case.epsilon,
        normalise=(*NORMALISATION[0], *NORMALISATION[1]),
        batch_size=case.batch_size,
        evaluate_every=case.epochs,
        seed=seed,
        **changes,
    )


def at_hand(case: Case, source: Dataset) -> Data | Dataset:
    """What `harden` is given: the folder as it is, or a part of the training images and held-out ones unseen so far."""
    if source.val is None:
        return replace(case.data, val_size=None)
    return replace(source, train=source.train.subset(balanced_indices(source.train.y, AT_HAND, seed=0)))


def scratch_recipe(case: Case, result: Hardened) -> Recipe:
    """The objective that `harden` ended with, from new weights, for as many epochs as all its tries had together."""
    recipe = result.recipe
    return replace(
        recipe,
        name=f"{recipe.name}-scratch",
        model="cnn",  # the module given takes its place
        optimizer=case.rate,
        ramp=0.0,
        epochs=recipe.epochs * len(result.tried),
        evaluate_every=recipe.epochs * len(result.tried),
    )


def attacked(model: nn.Module, source: Dataset, epsilon: float) -> dict[str, Any]:
    """One flag for each image: clean and PGD-20 on 1,000 of the test images, AutoAttack on the first 200 of them."""
    test = source.test.subset(choose_images(source.test.y, TEST_IMAGES))
    threat = Threat(epsilon=epsilon)
    pgd20 = PGD(threat=threat, steps=20, step_size=epsilon / 10, start="uniform")
    quiet: dict[str, Any] = {"quiet": True, "check_model": False}
    weak = evaluate(model, test.x, test.y, {"pgd20": pgd20}, **quiet)
    few = test.subset(torch.arange(min(AUTOATTACK_IMAGES, len(test))))
    left = list(map(bool, weak.attacks["pgd20"].flags[: len(few)]))
    strong = evaluate(model, few.x, few.y, {"autoattack": AutoAttack(threat=threat)}, mask=left, **quiet)
    flags = {
        "clean": weak.clean,
        "pgd20": weak.attacks["pgd20"].flags,
        "autoattack": strong.attacks["autoattack"].flags,
    }
    return {name: "".join("01"[bool(flag)] for flag in each) for name, each in flags.items()}


def measure(name: str, case: Case, seed: int, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The three networks of a case, one after the other, each with what was found."""
    quiet: dict[str, Any] = {"quiet": True, "log": "none", "overwrite": True}
    source = case.data.load()
    given = at_hand(case, source)
    model = load(fit(plain_recipe(case, seed), folder / "plain", **quiet).checkpoint("last"), trust_code=True)
    yield "before", attacked(model, source, case.epsilon)

    torch.manual_seed(1_000 + seed)
    fresh = create_model(case.model, classes=len(source.classes), normalise=NORMALISATION)
    begun = time.process_time()
    result = harden(
        model,
        given,
        case.epsilon,
        clean_drop=case.clean_drop,
        batch_size=case.batch_size,
        seed=seed,
        out=folder / "hardened",
        overwrite=True,
        log="none",
        quiet=True,
    )
    seconds = time.process_time() - begun
    print(f"{name} {seed}\n{result}", flush=True)
    tried = {f"{lr:g}, {inv_lambda:g}": value for (lr, inv_lambda), value in result.tried.items()}
    more = {"tried": tried, "held_out": result.held_out, "verdict": result.verdict, "epochs": result.recipe.epochs}
    yield "hardened", attacked(result.model, source, case.epsilon) | more | {"cpu_seconds": seconds}

    begun = time.process_time()
    data = None if isinstance(given, Data) else given
    run = fit(scratch_recipe(case, result), folder / "scratch", model=fresh, data=data, **quiet)
    seconds = time.process_time() - begun
    model = load(run.checkpoint("last"), model=fresh)
    yield "scratch", attacked(model, source, case.epsilon) | {"cpu_seconds": seconds}


def work(options: argparse.Namespace) -> None:
    """Every case of a seed, then the next seed; a finished case has the file of its last network."""
    plain_classifier.main(options.out, epochs=0)  # the folder digits48
    stored = {(run["case"], run["seed"], run["network"]) for run in gather(options.out)["runs"]}
    for seed in SEEDS:
        for name, case in cases(options).items():
            folder = options.out / f"{name}-seed{seed}"
            if (name, seed, "scratch") in stored:
                continue
            folder.mkdir(exist_ok=True)
            for network, found in measure(name, case, seed, folder):
                write_atomically(folder / f"{network}.json", json.dumps(found).encode())
                shares = {key: f"{flags.count('1')}/{len(flags)}" for key, flags in list(found.items())[:3]}
                print(f"{time.process_time():.0f} s: {name} {seed} {network} {shares}", flush=True)
            if time.process_time() > 60 * options.minutes:
                print("the time is used up", flush=True)
                return


def gather(folder: Path) -> dict[str, Any]:
    """All networks that were measured: those of the folder, and those of the results whose folders may be gone."""
    runs = {}
    if RESULTS.exists():
        for run in json.loads(RESULTS.read_text())["runs"]:
            runs[run["case"], run["seed"], run["network"]] = run
    for path in folder.glob("*-seed*/*.json"):
        name, _, seed = path.parent.name.rpartition("-seed")
        if path.stem in ("before", "hardened", "scratch"):
            found = json.loads(path.read_text())
            key = (name, int(seed), path.stem)
            runs[key] = {"case": name, "seed": int(seed), "network": path.stem, "found": found}
    return {"environment": environment(), "runs": [runs[key] for key in sorted(runs)]}


def report(runs: list[dict[str, Any]]) -> str:
    """Means over seeds in %, and `harden` less each other network, paired by seed, in points."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for run in runs:
        found.setdefault((run["case"], run["network"]), {})[run["seed"]] = run["found"]
    lines = ["| case | network | seeds | clean | PGD-20 | AutoAttack | CPU, s |", "|---|---|---|---|---|---|---|"]
    for (case, network), by_seed in found.items():
        cells = []
        for attack in ATTACKS:
            rates = summarise([share(each[attack]) for each in by_seed.values()])
            cells.append(f"{rates.mean:.1f}" + (f" ± {rates.deviation:.1f}" if rates.n > 1 else ""))
        seconds = [each["cpu_seconds"] for each in by_seed.values() if "cpu_seconds" in each]
        cpu = f"{sum(seconds) / len(seconds):.0f}" if seconds else ""
        lines.append(f"| {case} | {network} | {len(by_seed)} | {' | '.join(cells)} | {cpu} |")
    lines += ["", "| difference | seeds | clean | AutoAttack |", "|---|---|---|---|"]
    for (case, network), by_seed in found.items():
        hardened = found.get((case, "hardened"), {})
        seeds = sorted(hardened.keys() & by_seed.keys())
        if network == "hardened" or not seeds:
            continue
        cells = []
        for attack in ("clean", "autoattack"):
            gaps = [share(hardened[seed][attack]) - share(by_seed[seed][attack]) for seed in seeds]
            interval = t_interval(gaps) if len(gaps) > 1 else None
            text = f" [{interval.low:+.1f}, {interval.high:+.1f}]" if interval else ""
            cells.append(f"{sum(gaps) / len(gaps):+.1f}{text}")
        lines.append(f"| {case}: hardened less {network} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def share(flags: str) -> float:
    """Of correct images, in %."""
    return 100 * flags.count("1") / len(flags)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cifar10", type=Path, help="cifar10.npz: uint8 x_train, x_test [n, 32, 32, 3], and labels")
    parser.add_argument("svhn", type=Path, help="svhn-mini.npz, likewise")
    parser.add_argument("--out", type=Path, default=Path("runs/harden-study"))
    parser.add_argument("--minutes", type=float, default=60.0, help="of CPU time, after which no case is begun")
    parser.add_argument("--gather", action="store_true", help="write results/harden-study.json, train nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.gather:
        found = gather(options.out)
        RESULTS.write_text(json.dumps(found) + "\n")
        print(report(found["runs"]))
        return
    work(options)


if __name__ == "__main__":
    main()
