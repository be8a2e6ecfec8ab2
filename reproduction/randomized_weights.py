"""What randomized weights buy, on real CIFAR-10: every reading and control screened, then the best on fresh seeds.

    python -m reproduction.randomized_weights cifar10.npz --stage regime    # TRADES alone, to choose the regime
    python -m reproduction.randomized_weights cifar10.npz --stage weigh     # which readings have a say in the gradient
    python -m reproduction.randomized_weights cifar10.npz --stage screen    # held-out training images choose
    python -m reproduction.randomized_weights cifar10.npz --gather          # writes results/randomized-weights.json
    python -m reproduction.randomized_weights cifar10.npz --stage decide    # fresh seeds, all test images; gather again
    python -m reproduction.randomized_weights_report

Trains what is missing; a broken run resumes, and several processes share the work. The protocol, with what was fixed
before which stage ran, is reproduction/studies/randomized-weights.md. cifar10.npz holds uint8 arrays x_train, x_test
[n, 32, 32, 3] and y_train, y_test [n].
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

import reproduction.readings  # noqa: F401  (registers modes of the Taylor terms)
from rattle.analysis.term_gradients import LASTS, term_rows
from rattle.data import Augment, Images
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.objectives import Taylor
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import OneCycle
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.runs.source import environment
from rattle.training.loop import fit
from rattle.weights import Noise
from reproduction.cifar10_study import accuracies_and_flatness
from reproduction.study import WEAK, share_work

MODEL = "cnn-strided"  # 165,114 weights, BatchNorm
IMAGES, HELD_OUT, EPOCHS, BATCH, RATE = 20_000, 2_000, 10, 64, 0.1
AUGMENT, SCHEDULE = Augment(pad=0, flip=True), OneCycle(peak=0.3)
RESULTS = Path(__file__).parent / "results" / "randomized-weights.json"
STEPS, STEP_SIZE = 3, 4 / 255  # of the inner attack: a third of the paper's, for more runs
SCREENING_SEEDS, FRESH_SEEDS = (100, 101), (0, 1, 2, 3, 4)
WEIGHED = 16  # minibatches of held-out images on which readings are weighed


def reading(mode: str, *, eta: float | None = None, noise: Noise | None = None, samples: int = 1, **more: Any) -> dict:
    """Changes to the recipe of TRADES that make a reading of it."""
    taylor = Taylor(order=2, mode=mode, eta=eta, **more)  # type: ignore[arg-type]
    return {"taylor": taylor, "noise": noise or Noise(), "noise_samples": samples}


def outer_filters(sigma: float) -> Noise:
    """u in proportion to filters, in the outer step alone."""
    return Noise(sigma=sigma, scale="filter", inner=0.0)


NO_U = Noise(sigma=0)
INNER = {f"inner {sigma:g}": {"noise": Noise(sigma=sigma)} for sigma in (0.01, 0.03)}
FILTERS = {s: Noise(sigma=s, scale="filter") for s in (0.05, 0.1, 0.2)}
# A name for each, with its strength.
VARIANTS: Mapping[str, dict[str, Any]] = {
    "trades": {"noise": NO_U},
    **INNER,
    **{f"inner filter {s:g}": {"noise": FILTERS[s]} for s in (0.1, 0.2)},
    **{f"smoothing {eta:g}": reading("smoothing", eta=eta, noise=NO_U) for eta in (0.1, 0.2, 0.4)},
    **{f"head {eta:g}": reading("head", eta=eta) for eta in (0.1, 0.2)},
    "head 0.2 without u": reading("head", eta=0.2, noise=NO_U),
    "head 0.2 derivative": reading("head-derivative", eta=0.2),
    **{f"exact {eta:g}": reading("exact-pairs", eta=eta, noise=Noise(sigma=1.0, inner=0.0)) for eta in (0.2, 1.0)},
    "exact 0.2 sigma 0.1": reading("exact-pairs", eta=0.2, noise=Noise(sigma=0.1, inner=0.0)),
    **{f"trace filter {s:g}": reading("trace", eta=6.0, noise=outer_filters(s)) for s in (0.05, 0.1, 0.4)},
    **{f"head-noise filter {s:g}": reading("head-noise", eta=6.0, noise=outer_filters(s)) for s in (0.1, 0.2, 2)},
    "sampled 0.01": reading("sampled-pairs"),
    **{f"sampled filter {s:g}": reading("sampled-pairs", noise=FILTERS[s]) for s in (0.05, 0.1, 0.2)},
    "sampled filter 0.1 outer": reading("sampled-pairs", noise=outer_filters(0.1)),
    **{f"mixture filter {s:g}": reading("mixture", noise=FILTERS[s]) for s in (0.1, 0.2)},
    "awp": {"base": "trades-awp", "noise": NO_U},
}
ALWAYS = ("trades", "smoothing 0.2", "head 0.2", "awp")  # in the second stage whatever the first one finds


def recipe_of(variant: str, seed: int, data: str) -> Recipe:
    """`VARIANT` or `awp + VARIANT`."""
    awp, _, plain = variant.rpartition("awp + ")
    changes = VARIANTS[plain]
    base = "trades-awp" if awp or variant.startswith("awp + ") else changes.get("base", "trades")
    recipe = get_recipe(f"cifar10-linf-{MODEL}-{base}")
    taylor = changes.get("taylor", Taylor())
    return replace(
        recipe,
        name=f"{MODEL}-{variant}",
        data=Data(name=data, train_size=IMAGES, val_size=HELD_OUT, augment=AUGMENT),
        attack=replace(recipe.attack, steps=STEPS, step_size=STEP_SIZE),
        objective=replace(recipe.objective, taylor=taylor),  # type: ignore[type-var]
        noise=changes["noise"],
        noise_samples=changes.get("noise_samples", 1),
        awp=replace(recipe.awp, warmup=1) if recipe.awp else None,  # 10 of 200 epochs
        optimizer=replace(recipe.optimizer, lr=RATE),
        schedule=SCHEDULE,
        epochs=EPOCHS,
        batch_size=BATCH,
        seed=seed,
        evaluate_every=2,
        save_minutes=3,
        threads=1,
    )


def slug(variant: str) -> str:
    """A variant's name in folders and results."""
    return variant.replace(" ", "-").replace("+", "and")


def folder_of(options: argparse.Namespace, variant: str, seed: int) -> Path:
    return options.out / f"{slug(variant)}-seed{seed}"


def train(variant: str, seed: int, options: argparse.Namespace) -> tuple[Run, Recipe]:
    folder, recipe = folder_of(options, variant, seed), recipe_of(variant, seed, str(options.data))
    return fit(recipe, folder, resume=(folder / "recipe.yaml").exists(), log="none"), recipe


def of_checkpoints(run: Run, judge: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What is found of the last checkpoint and of the best, which may be the same one."""
    steps = [read_checkpoint(run.checkpoint(which)).progress["step"] for which in ("best", "last")]
    last = judge("last")
    return {"last": last, "best": last if steps[0] == steps[1] else judge("best")}


def screen(variant: str, seed: int, options: argparse.Namespace) -> None:
    """Train, and attack the held-out training images: nothing here sees a test image."""
    stored = folder_of(options, variant, seed) / "screen.json"
    start = time.process_time()
    run, recipe = train(variant, seed, options)
    held_out = recipe.data.load().val
    assert held_out is not None

    def judge(which: str) -> dict[str, Any]:
        result = evaluate(load(run.checkpoint(which)), held_out.x, held_out.y, WEAK)
        accuracies = {name: 100 * attack.accuracy for name, attack in result.attacks.items()}
        return {"clean": 100 * result.clean_accuracy, **accuracies}

    found = of_checkpoints(run, judge)
    found["processor_seconds"] = time.process_time() - start
    write_atomically(stored, json.dumps(found).encode())
    print(variant, seed, found, flush=True)


def decide(variant: str, seed: int, options: argparse.Namespace) -> None:
    """Train, attack the test images, measure flatness."""
    run, recipe = train(variant, seed, options)
    test: Images = recipe.data.load().test

    def judge(which: str) -> dict[str, Any]:
        found = accuracies_and_flatness(load(run.checkpoint(which)), test, run.folder / f"results-{which}")
        print(variant, seed, which, {k: v for k, v in found.items() if k != "flags"}, flush=True)
        return found

    found = of_checkpoints(run, judge)
    write_atomically(run.folder / "decide.json", json.dumps(found).encode())


def weigh(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What every variant with Taylor terms adds to the gradient of TRADES' own network, on held-out images: by its
    name, as `rattle fidelity` measures it."""
    run, recipe = train("trades", SCREENING_SEEDS[0], options)
    held_out, model = recipe.data.load().val, load(run.checkpoint("best"))
    assert held_out is not None
    parts = [held_out[torch.arange(i * BATCH, (i + 1) * BATCH)] for i in range(WEIGHED)]
    found = {}
    for name, changes in VARIANTS.items():
        if "taylor" in changes:
            row = term_rows(model, recipe_of(name, recipe.seed, str(options.data)), parts, recipe.seed)[-1]
            found[name] = {"n": len(parts) * BATCH, **row}
            print(name, found[name], flush=True)
    return found


def candidates(weights: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of these the first stage chooses two: what the second one does not have anyway and has a say in the gradient.

    Constant soft labels have neither u nor a derivative: they are the control.
    """
    if not weights:
        raise RattleError("run --stage weigh first: it tells which readings have a say")
    others = [name for name in VARIANTS if name not in ALWAYS and not name.startswith("smoothing")]
    return [name for name in others if name not in weights or weights[name]["over_zeroth"] >= LASTS]


STAGES = {"screen": "screened", "decide": "runs"}  # what is in a run's STAGE.json once it is done -> its list


def finished() -> dict[str, Any]:
    """What was gathered before, of runs whose folders may be gone."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {"weights": stored.get("weights", {})} | {part: stored.get(part, []) for part in STAGES.values()}


def score(found: Mapping[str, Any]) -> float:
    """By which the screening chooses: the mean of PGD-20 and CW-20, best and last checkpoint, of one run."""
    return sum(found[which][attack] for which in ("best", "last") for attack in WEAK) / (2 * len(WEAK))


def still_open(screened: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The two best of the candidates whose runs are all there, and those that could displace one of them: with the best
    score of any run so far in the place of each run they lack, their mean would do. Both the most promising first."""
    scores = {(run["method"], run["seed"]): score(run["found"]) for run in screened}
    ceiling = max(scores.values(), default=math.inf)
    known = {name: [scores.get((slug(name), seed)) for seed in SCREENING_SEEDS] for name in names}
    hopes = {name: sum(ceiling if s is None else s for s in each) for name, each in known.items()}
    whole = [name for name in names if None not in known[name]]
    best = sorted(whole, key=lambda name: -hopes[name])[:2]
    bar = hopes[best[-1]] if len(best) == 2 else -math.inf
    return best, sorted((n for n in names if n not in whole and hopes[n] >= bar), key=lambda name: -hopes[name])


def chosen(screened: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The two best candidates, the better one first, once no run that the screening lacks can displace them."""
    best, others = still_open(screened, names)
    if others:
        raise RattleError(
            f"the screening lacks runs that may change its choice, so nothing is chosen: {', '.join(others)}"
        )
    return best


def gathered(options: argparse.Namespace) -> dict[str, Any]:
    """All runs that are finished, of both stages."""
    parts, weights = finished(), options.out / "weights.json"
    if weights.exists():
        parts["weights"] = json.loads(weights.read_text())
    for stage, part in STAGES.items():
        runs = {(run["method"], run["seed"]): run for run in parts[part]}
        for path in sorted(options.out.glob(f"*/{stage}.json")):
            name, _, seed = path.parent.name.rpartition("-seed")
            runs[name, int(seed)] = {"method": name, "seed": int(seed), "found": json.loads(path.read_text())}
        parts[part] = [runs[key] for key in sorted(runs)]
    return {"environment": environment(), **parts}


def jobs(options: argparse.Namespace) -> list[tuple[str, int]]:
    """(variant, seed) of the runs that a stage lacks; in the screening, those that its choice waits for come first."""
    there = gathered(options)
    done = {(run["method"], run["seed"]) for run in there[STAGES.get(options.stage, "screened")]}
    if options.stage == "regime":
        wanted = [("trades", SCREENING_SEEDS[0])]
    elif options.stage == "screen":
        awaited = still_open(there["screened"], candidates(there["weights"]))[1]
        wanted = list(product(dict.fromkeys([*awaited, *VARIANTS]), SCREENING_SEEDS))
    else:
        best = chosen(there["screened"], candidates(there["weights"]))
        wanted = [(variant, seed) for seed in FRESH_SEEDS for variant in (*ALWAYS, *best, f"awp + {best[0]}")]
    return [(variant, seed) for variant, seed in wanted if (slug(variant), seed) not in done]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/randomized-weights"))
    parser.add_argument("--stage", choices=("regime", "weigh", "screen", "decide"), default="screen")
    parser.add_argument("--gather", action="store_true", help="write down what is there, run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.gather:
        RESULTS.write_text(json.dumps(gathered(options), indent=1) + "\n")
        return
    if options.stage == "weigh":
        write_atomically(options.out / "weights.json", json.dumps(weigh(options)).encode())
        return
    measure = decide if options.stage == "decide" else screen
    share_work(
        lambda: jobs(options), lambda job: folder_of(options, *job), lambda job: measure(job[0], job[1], options)
    )


if __name__ == "__main__":
    main()
