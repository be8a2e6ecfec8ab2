"""What the Taylor terms do on CIFAR-10 with a slim network, where TRADES underfits and where it overfits robustly.

    python benchmarks/cifar10_study.py cifar10.npz --out runs/cifar10-study --seeds 0 1 2

Trains what is missing (a broken run resumes), attacks each run's checkpoints on the first 1,000 test images, measures
their flatness, and writes results/cifar10-study.json. Start it twice, the second time with --from-the-end, and two
cores share the work; `--table` only gathers what is there. cifar10.npz holds uint8 arrays x_train, x_test [n, 32, 32,
3] and y_train, y_test [n].
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rattle.attacks import PGD, AutoAttack
from rattle.checkpoint import write_atomically
from rattle.data import Augment, Data, Images, to_float
from rattle.errors import RattleError
from rattle.evaluation import evaluate
from rattle.flatness import flatness
from rattle.recipes import Recipe, named
from rattle.runs import Run, load
from rattle.threat import Threat
from rattle.train import fit

METHODS = ("trades", "trades-1st", "trades-2nd", "trades-awp", "trades-awp-2nd")
NEAR = Threat(epsilon=0.031)  # of PGD-20 and CW-20, as in the paper's Table 2
WEAK = {
    "pgd20": PGD(threat=NEAR, steps=20, step_size=0.003, start="uniform"),
    "cw20": PGD(threat=NEAR, steps=20, step_size=0.003, start="uniform", loss="cw"),
}
TEST_IMAGES, FLAT_IMAGES = 1000, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How much is learned from how many images."""

    images: int
    epochs: int
    batch_size: int
    lr: float
    augment: Augment
    evaluate_every: int
    checkpoints: tuple[str, ...]  # those that are attacked
    strongest: str  # the one that AutoAttack and flatness look at


REGIMES = {
    "underfit": Regime(
        images=10_000,
        epochs=6,
        batch_size=128,
        lr=0.1,
        augment=Augment(),
        evaluate_every=2,
        checkpoints=("best",),
        strongest="best",
    ),
    "overfit": Regime(
        images=1_000,
        epochs=50,
        batch_size=50,
        lr=0.05,
        augment=Augment(pad=0, flip=False),
        evaluate_every=5,
        checkpoints=("best", "last"),
        strongest="last",
    ),
}


def recipe_of(regime: Regime, method: str, seed: int, data: str) -> Recipe:
    recipe = named(f"cifar10-linf-cnn-slim-{method}")
    return replace(
        recipe,
        data=Data(name=data, train_size=regime.images, val_size=1000, augment=regime.augment),
        awp=replace(recipe.awp, warmup=regime.epochs // 20) if recipe.awp else None,  # 10 of 200 epochs
        optimizer=replace(recipe.optimizer, lr=regime.lr),
        epochs=regime.epochs,
        batch_size=regime.batch_size,
        seed=seed,
        evaluate_every=regime.evaluate_every,
        threads=1,
    )


def study(name: str, method: str, seed: int, options: argparse.Namespace) -> None:
    """Train one run, attack and measure its checkpoints; whatever is done already is left alone."""
    regime, folder = REGIMES[name], options.out / f"{name}-{method}-seed{seed}"
    recipe = recipe_of(regime, method, seed, str(options.data))
    run = fit(recipe, folder, resume=(folder / "recipe.yaml").exists(), log="none")
    test = recipe.data.load().test[torch.arange(TEST_IMAGES)]
    for which in regime.checkpoints:
        stored = folder / f"study-{which}.json"
        if not stored.exists():
            model, store = load(run.checkpoint(which)), folder / f"results-{which}"
            found = judged(model, test, store, whole=which == regime.strongest)
            write_atomically(stored, json.dumps(found).encode())
            print(stored.parent.name, which, {k: v for k, v in found.items() if isinstance(v, float)}, flush=True)


def judged(model: torch.nn.Module, test: Images, store: Path, *, whole: bool) -> dict[str, Any]:
    """Flags of every image under each attack, and with `whole` AutoAttack's and the four flatness numbers.

    AutoAttack is asked only about images that PGD-20 and CW-20 left: what those broke, at a smaller epsilon, is broken.
    """
    weak = evaluate(model, test.x, test.y, WEAK, store=store)
    flags, numbers = {"clean": weak.clean} | {k: v.flags for k, v in weak.verdicts.items()}, {}
    if whole:
        threat = Threat(epsilon=8 / 255)
        strong = {"autoattack": AutoAttack(threat=threat)}
        found = evaluate(model, test.x, test.y, strong, among=weak.worst_case, store=store, batch_size=TEST_IMAGES)
        flags["autoattack"] = found.verdicts["autoattack"].flags
        x, y = to_float(test.x[:FLAT_IMAGES]), test.y[:FLAT_IMAGES]
        flat = flatness(model, x, y, threat=threat, iterations=30)
        numbers = {
            "lipschitz": float(flat.lipschitz.values.mean()),
            "input_curvature": float(flat.input.values.mean()),
            "weight_curvature": float(flat.weight.values.mean()),
            "noise_rise": flat.noise.mean,
        }
    shares = {k: 100 * sum(v) / len(v) for k, v in flags.items()}
    return shares | numbers | {"flags": {k: "".join(str(int(f)) for f in v) for k, v in flags.items()}}


def gathered(options: argparse.Namespace) -> dict[str, Any]:
    """All runs that are finished, with their curves on the held-out images."""
    runs = []
    for name, regime in REGIMES.items():
        for method in METHODS:
            for seed in options.seeds:
                folder = options.out / f"{name}-{method}-seed{seed}"
                parts = {which: folder / f"study-{which}.json" for which in regime.checkpoints}
                if all(path.exists() for path in parts.values()):
                    lines = Run(folder).metrics.read_text().splitlines()
                    kept = ("epoch", "loss", "val_clean", "val_robust")
                    curve = [{k: v for k, v in json.loads(line).items() if k in kept} for line in lines]
                    found = {which: json.loads(path.read_text()) for which, path in parts.items()}
                    runs.append({"regime": name, "method": method, "seed": seed, "curve": curve, "found": found})
    return {"test_images": TEST_IMAGES, "flat_images": FLAT_IMAGES, "seeds": options.seeds, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10-study"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--from-the-end", action="store_true", help="begin with the last run")
    parser.add_argument("--table", action="store_true", help="gather what is there, run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    jobs = [(name, method, seed) for seed in options.seeds for name in REGIMES for method in METHODS]
    for name, method, seed in [] if options.table else reversed(jobs) if options.from_the_end else jobs:
        try:
            study(name, method, seed, options)
        except RattleError as refusal:  # another process has it, or it diverged
            print(f"{name} {method} seed {seed}: {refusal}", flush=True)
    options.results.mkdir(exist_ok=True)
    (options.results / "cifar10-study.json").write_text(json.dumps(gathered(options), indent=1))


if __name__ == "__main__":
    main()
