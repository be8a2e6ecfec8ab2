"""How strong the inner attack of TRADES is in bf16, beside float32, on trained runs.

    python -m reproduction.bf16_attack RUN [RUN ...]

Both attack the same images with the same draws; the KL divergence that they reach is computed in float32. A start of
std 0.001 is below what bf16 can tell apart in a pixel, 1/256 near 1, so that the first step goes anywhere.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.inputs import to_float
from rattle.losses import kl
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import resolve
from rattle.report.writers import markdown_table
from rattle.runs.load import load
from rattle.runs.paths import Run
from rattle.weights import eval_mode

IMAGES = 2_000
STEPS = {3: 4 / 255, 10: 2 / 255}  # K -> step size


def reached(model: nn.Module, attack: PGD, x: Tensor, y: Tensor, *, bf16: bool) -> float:
    """The mean KL divergence to the clean images at the points that an attack finds."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        x_adv = attack(model, x, y, generator=ImageStreams(0, torch.arange(len(y)))).float()
    with torch.no_grad():
        return kl(model(x), model(x_adv)).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs, such as those of the trade-off study")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios: dict[tuple[str, int], list[float]] = {}
    for folder in options.runs:
        recipe, model = resolve(str(folder)), load(Run(folder).checkpoint("last"))
        test = recipe.data.load().test[torch.arange(IMAGES)]
        x = to_float(test.x)
        for start in ("gaussian", "uniform"):
            for steps, step_size in STEPS.items():
                attack = replace(recipe.attack, loss="kl", start=start, steps=steps, step_size=step_size)
                with eval_mode(model):
                    half, full = (reached(model, attack, x, test.y, bf16=bf16) for bf16 in (True, False))
                ratios.setdefault((start, steps), []).append(half / full)
    rows = [[start, str(steps), f"{fmean(each):.3f}"] for (start, steps), each in ratios.items()]
    print(markdown_table(["start", "steps", f"KL in bf16 over float32, {len(options.runs)} runs"], rows, left=1))


if __name__ == "__main__":
    main()
