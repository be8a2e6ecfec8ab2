"""Where training overfits: what the Taylor terms and randomized weights do to plain adversarial training on CIFAR-10.

    python -m reproduction.plain_at cifar10.npz            # trains and attacks what is missing
    python -m reproduction.plain_at cifar10.npz --gather   # writes results/plain-at.json

First AT alone with 3, 5, 7 and 10 inner steps chooses how many this study takes; then every variant is trained with
every seed. The protocol, fixed before the first run: reproduction/studies/trade-off.md. A killed run resumes, several
processes share the work, and runs in results/plain-at.json are not repeated. cifar10.npz holds uint8 arrays x_train,
x_test [n, 32, 32, 3] and y_train, y_test [n].
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rattle.attacks import PGD
from rattle.data import Augment
from rattle.data.registry import Data
from rattle.forward import Outputs
from rattle.losses import ce
from rattle.objectives import AT, Taylor
from rattle.objectives.base import Method, StepContext
from rattle.objectives.registry import register_method
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schedules import Piecewise
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.io import write_atomically
from rattle.runs.load import load
from rattle.runs.source import environment
from rattle.weights import Noise
from reproduction.study import AUTOATTACK_IMAGES, TEST_IMAGES, attacked, share_work, train, unpacked

MODEL = "cnn-strided"  # 165,114 weights, BatchNorm
IMAGES, HELD_OUT, EPOCHS, BATCH, RATE = 5_000, 1_000, 40, 64, 0.1
INNER_STEPS = {3: 4 / 255, 5: 3 / 255, 7: 2.5 / 255, 10: 2 / 255}  # K -> step size
LARGEST_GAP = 3.0  # points from CW-20 down to AutoAttack that the choice of K allows
Job = tuple[str, int, int]  # variant, seed, inner steps; the choice of K is a variant of its own
CHOICE = "K"
K_SEED, SEEDS = 100, (0, 1, 2, 3, 4)
RESULTS = Path(__file__).parent / "results" / "plain-at.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallLossAT(AT):
    """AT whose adversarial images of small loss are judged at w + u, the others at w (after RWP, Yu et al. 2022)."""

    title = "AT, u on small losses"
    most: float = 1.7  # largest cross-entropy at w that counts as small; the paper's for CIFAR-10

    def own_terms(self, outputs: Outputs, y: Tensor, context: StepContext) -> dict[str, Tensor]:
        at_w = ce(outputs.logits_adv, y)
        drawn = [z_adv for _, z_adv in outputs.sampled] or [outputs.logits_adv]
        at_u = torch.stack([ce(z_adv, y) for z_adv in drawn]).mean(0)
        return {"zeroth": torch.where(at_w.detach() <= self.most, at_u, at_w).mean()}


register_method(
    "at-small-loss",
    Method(objective=SmallLossAT(), attack=PGD(loss="ce", start="uniform")),
    summary="AT with weight noise on images of small loss",
    paper="after Yu et al. 2022",
)

NO_U = Noise(sigma=0)
OUTER_U = Noise(sigma=0.01, inner=0.0)  # u in the outer step alone, where the sampled mode draws it
SAMPLED = Taylor(order=1, mode="sampled")
# variant -> (method of the recipe, Taylor terms, noise); None keeps what the recipe has
VARIANTS: dict[str, tuple[str, Taylor | None, Noise | None]] = {
    "at": ("at", None, None),
    "at-2nd": ("at-2nd", None, None),
    "at-1st": ("at-1st", None, None),
    "at-2nd-without-u": ("at-2nd", None, NO_U),
    "u-alone": ("at", None, Noise(sigma=0.01)),
    "smoothing": ("at", Taylor(order=2, eta=0.2, mode="smoothing"), NO_U),
    "awp": ("at-awp", None, None),
    "awp-2nd": ("at-awp-2nd", None, None),
}
LATER: dict[str, tuple[str, Taylor | None, Noise | None]] = {  # trained when all of the above are there
    "u-on-small-losses": ("at-small-loss", SAMPLED, OUTER_U),
    "u-on-all-losses": ("at", SAMPLED, OUTER_U),
}


def recipe_of(variant: str, seed: int, inner_steps: int, data: str) -> Recipe:
    """The recipe of a variant in the regime of this study."""
    method, taylor, noise = (VARIANTS | LATER)[variant]
    recipe = get_recipe(f"cifar10-linf-{MODEL}-{method}")
    objective = recipe.objective
    if taylor is not None:
        objective = replace(objective, taylor=taylor)  # type: ignore[type-var]
    return replace(
        recipe,
        name=f"{MODEL}-{variant}",
        data=Data(name=data, train_size=IMAGES, val_size=HELD_OUT, augment=Augment(pad=0, flip=True)),
        attack=replace(recipe.attack, steps=inner_steps, step_size=INNER_STEPS[inner_steps]),
        objective=objective,
        noise=recipe.noise if noise is None else noise,
        optimizer=replace(recipe.optimizer, lr=RATE),
        schedule=Piecewise(),
        epochs=EPOCHS,
        batch_size=BATCH,
        seed=seed,
        evaluate_every=2,
        save_minutes=3,
        threads=1,
    )


def choose_inner_steps(gaps: dict[int, float]) -> int | None:
    """The fewest inner steps whose gap is small enough, the most there are if none is; None while runs are missing."""
    for inner_steps in INNER_STEPS:
        if inner_steps not in gaps:
            return None
        if gaps[inner_steps] < LARGEST_GAP:
            return inner_steps
    return max(INNER_STEPS)


def measure_gap(inner_steps: int, folder: Path, data: str) -> None:
    """Train AT with K inner steps; CW-20 less AutoAttack of the last checkpoint, on the held-out training images."""
    recipe = recipe_of("at", K_SEED, inner_steps, data)
    start = time.process_time()
    run = train(recipe, folder)
    held_out = recipe.data.load().val
    assert held_out is not None
    found = attacked(load(run.checkpoint("last")), held_out, folder / "results")
    cw20 = unpacked(found["flags"]["cw20"], len(held_out.y))[:AUTOATTACK_IMAGES].mean()
    found["gap"] = 100 * float(cw20) - found["autoattack"]
    found["cpu_seconds"] = time.process_time() - start
    write_atomically(folder / "gap.json", json.dumps(found).encode())
    print(f"K {inner_steps}:", {key: value for key, value in found.items() if key != "flags"}, flush=True)


def measure_variant(variant: str, recipe: Recipe, folder: Path) -> None:
    """Train one variant and attack its best and last checkpoint, which may be the same one."""
    start = time.process_time()
    run = train(recipe, folder)
    test = recipe.data.load().test[torch.arange(TEST_IMAGES)]
    found: dict[str, Any] = {}
    for which in ("last", "best"):
        found[which] = {"epoch": read_checkpoint(run.checkpoint(which)).progress["step"] // (IMAGES // BATCH)}
        if which == "best" and found["best"] == {"epoch": found["last"]["epoch"]}:
            found["best"] = found["last"]
            continue
        found[which] |= attacked(load(run.checkpoint(which)), test, folder / f"results-{which}")
        shown = {k: v for k, v in found[which].items() if k != "flags"}
        print(variant, recipe.seed, which, shown, flush=True)
    found["cpu_seconds"] = time.process_time() - start
    write_atomically(folder / "found.json", json.dumps(found).encode())


def gathered(options: argparse.Namespace) -> dict[str, Any]:
    """All finished runs: those of the folder, and those of results/plain-at.json whose folders may be gone."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"inner_steps": {}, "runs": []}
    inner_steps = stored["inner_steps"]
    for path in options.out.glob("k*/gap.json"):
        inner_steps[path.parent.name[1:]] = json.loads(path.read_text())
    runs = {(run["variant"], run["seed"]): run for run in stored["runs"]}
    for path in options.out.glob("*/found.json"):
        variant, _, seed = path.parent.name.rpartition("-seed")
        runs[variant, int(seed)] = {"variant": variant, "seed": int(seed), "found": json.loads(path.read_text())}
    return {"environment": environment(), "inner_steps": inner_steps, "runs": [runs[key] for key in sorted(runs)]}


def jobs(options: argparse.Namespace) -> list[Job]:
    """The runs that are missing, in order; the choice of K comes first."""
    there = gathered(options)
    gaps = {int(inner_steps): found["gap"] for inner_steps, found in there["inner_steps"].items()}
    chosen = choose_inner_steps(gaps)
    if chosen is None:
        return [(CHOICE, K_SEED, inner_steps) for inner_steps in INNER_STEPS if inner_steps not in gaps]
    done = {(run["variant"], run["seed"]) for run in there["runs"]}
    left = []
    for group in (VARIANTS, LATER):
        for seed in SEEDS:
            left += [(variant, seed, chosen) for variant in group if (variant, seed) not in done]
    return left


def folder_of(job: Job, out: Path) -> Path:
    variant, seed, inner_steps = job
    return out / (f"k{inner_steps}" if variant == CHOICE else f"{variant}-seed{seed}")


def measure(job: Job, options: argparse.Namespace) -> None:
    variant, seed, inner_steps = job
    if variant == CHOICE:
        measure_gap(inner_steps, folder_of(job, options.out), str(options.data))
    else:
        measure_variant(variant, recipe_of(variant, seed, inner_steps, str(options.data)), folder_of(job, options.out))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/plain-at"))
    parser.add_argument("--gather", action="store_true", help="write results/plain-at.json, train nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.gather:
        RESULTS.write_text(json.dumps(gathered(options)) + "\n")
        return
    share_work(lambda: jobs(options), lambda job: folder_of(job, options.out), lambda job: measure(job, options))


if __name__ == "__main__":
    main()
