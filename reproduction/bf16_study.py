"""What training in bf16 does to accuracy: three methods with five seeds each, beside the same runs in float32.

    python -m reproduction.bf16_study cifar10.npz            # trains and attacks what is missing
    python -m reproduction.bf16_study cifar10.npz --gather   # writes results/bf16-study.json
    python -m reproduction.bf16_study --report               # the differences of what was gathered

The runs in float32 are those of randomized_weights.py at 1/lambda 6, so only 15 are trained here. The attacks inside
training run in bf16 too; evaluation is in float32: clean and PGD-20 on 10,000 test images, AutoAttack on the first
1,000. A killed run resumes, several processes share the work. Protocol: reproduction/studies/performance.md.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rattle.evaluation.samples import Difference, Sample, difference
from rattle.report.writers import markdown_table
from rattle.runs.io import write_atomically
from reproduction import randomized_weights
from reproduction.study import AUTOATTACK_IMAGES, TEST_IMAGES, command, gathered, unpacked
from reproduction.trade_off import TITLES, flags_at_six, of_last

VARIANTS, SEEDS = ("trades", "head 0.2", "awp"), randomized_weights.FRESH_SEEDS
MEASURES = {"clean": TEST_IMAGES, "pgd20": TEST_IMAGES, "autoattack": AUTOATTACK_IMAGES}
ALLOWED = 0.3  # points that bf16 may be worse, for `auto` to become the default
RESULTS = Path(__file__).parent / "results" / "bf16-study.json"
KEY = ("variant", "seed")  # of a run
Job = tuple[str, int]  # variant, seed


def folder_of(job: Job, out: Path) -> Path:
    variant, seed = job
    return out / f"{randomized_weights.slug(variant)}-bf16-seed{seed}"


def measure(job: Job, options: argparse.Namespace) -> None:
    """Train one run in bf16 and attack its last checkpoint in float32."""
    variant, seed = job
    recipe = replace(randomized_weights.recipe_of(variant, seed, str(options.data)), precision="bf16")
    found = of_last(recipe, folder_of(job, options.out)) | {"variant": variant, "seed": seed}
    write_atomically(folder_of(job, options.out) / "found.json", json.dumps(found).encode())
    print(*job, {name: found[name] for name in MEASURES}, flush=True)


def jobs(out: Path) -> list[Job]:
    """The runs that are missing, whole seeds first."""
    done = {(run["variant"], run["seed"]) for run in gathered(RESULTS, out, KEY)["runs"]}
    return [(variant, seed) for seed in SEEDS for variant in VARIANTS if (variant, seed) not in done]


def differences(runs: list[dict[str, Any]]) -> dict[str, dict[str, Difference]]:
    """bf16 less float32 of the same seeds and images: variant -> measure -> difference."""
    found: dict[str, dict[str, Difference]] = {}
    for variant in VARIANTS:
        stored = flags_at_six(variant)
        half = {run["seed"]: run["flags"] for run in runs if run["variant"] == variant}
        seeds = tuple(sorted(half.keys() & stored.keys()))
        for name, n in MEASURES.items() if seeds else ():
            both = []
            for flags in (half, stored):
                rows = tuple(tuple(unpacked(flags[seed][name], n).tolist()) for seed in seeds)
                both.append(Sample(seeds=seeds, flags=rows))
            gap = difference(*both)
            assert gap is not None  # the same seeds and numbers of images
            found.setdefault(variant, {})[name] = gap
    return found


def report() -> None:
    rows = []
    for variant, gaps in differences(json.loads(RESULTS.read_text())["runs"]).items():
        row = [TITLES[variant], str(gaps["clean"].n)]
        for gap in gaps.values():
            row.append(f"{100 * gap.mean:+.2f} {gap.interval.percent('+.2f')}")
        worst = min(gap.mean for gap in gaps.values())
        rows.append([*row, "yes" if 100 * worst >= -ALLOWED else "no"])
    print(markdown_table(["method", "seeds", *MEASURES, f"within {ALLOWED} points"], rows, left=1))


def main() -> None:
    command(__doc__, RESULTS, KEY, missing=jobs, folder=folder_of, measure=measure, report=report)


if __name__ == "__main__":
    main()
