"""How well single precision computes each reading of the Taylor terms, and how much the terms weigh.

    python -m reproduction.taylor_conditioning [--model zoo:digits-linf-cnn-trades] [--n 128] [--seeds 0 1 2 3 4]

Value and weight gradient of every term are computed twice, in single and in double precision, at the same weights,
images, adversarial images and u; train-mode BatchNorm, statistics held. The median over seeds of the differences, and
of what a term's gradient measures beside the zeroth term's. Written to reproduction/results/taylor_conditioning.json.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from rattle import load
from rattle.analysis.term_gradients import term_gradients
from rattle.forward import PairedForward
from rattle.inputs import to_float
from rattle.models import find_head
from rattle.objectives import Trades
from rattle.recipes.catalog import get_recipe
from rattle.runs.source import environment
from rattle.weights import Noise, frozen_bn_stats
from reproduction.taylor_cost import reading

RESULTS = Path(__file__).parent / "results" / "taylor_conditioning.json"
FILTERS = Noise(sigma=0.05, scale="filter")
READINGS: dict[str, tuple[Trades, Noise]] = {
    "zeroth term": (Trades(), Noise(sigma=0)),
    "`smoothing`": (reading("smoothing"), Noise(sigma=0)),
    "`head`": (reading("head"), Noise(sigma=0)),
    "`head`, second derivative": (reading("head-derivative"), Noise(sigma=0)),
    **{f"`exact`, sigma {sigma:g}": (reading("exact-pairs"), Noise(sigma=sigma)) for sigma in (1e-4, 0.01, 1.0)},
    **{f"`trace`, sigma {sigma:g}": (reading("trace", eta=6.0), Noise(sigma=sigma)) for sigma in (1e-4, 0.01)},
    "`trace`, 0.05 of a filter": (reading("trace", eta=6.0), FILTERS),
    "`head-noise`, sigma 0.01": (reading("head-noise", eta=6.0), Noise(sigma=0.01)),
    "`head-noise`, 0.05 of a filter": (reading("head-noise", eta=6.0), FILTERS),
    "`sampled`, sigma 0.01": (reading("sampled-pairs"), Noise(sigma=0.01)),
    "`sampled`, 0.05 of a filter": (reading("sampled-pairs"), FILTERS),
}


def terms_of(
    model: nn.Module, objective: Trades, u: Sequence[Mapping[str, Tensor]], x: Tensor, x_adv: Tensor, y: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Value and gradient of each term but the clean one, in the precision of the images, as doubles."""
    model = copy.deepcopy(model).to(x.dtype)
    draws = tuple({name: delta.to(x.dtype) for name, delta in draw.items()} for draw in u)
    with frozen_bn_stats(model):
        outputs = PairedForward(model, objective.needs, find_head(model, None))(x, x_adv, draws)
        terms = {name: value for name, value in objective(outputs, y).items() if name != "clean"}
    gradients = term_gradients(model, terms)
    return {name: (terms[name].detach().double(), gradients[name].double()) for name in terms}


def measured(model: nn.Module, objective: Trades, noise: Noise, images: tuple[Tensor, ...], seed: int) -> dict:
    """By term: the length of its gradient over the zeroth term's, and what single precision gets wrong."""
    x, x_adv, y = images
    forward = PairedForward(model, objective.needs, find_head(model, None))
    u = forward.draws(noise.at("outer"), 1, generator=torch.Generator().manual_seed(seed))
    wanted = terms_of(model, objective, u, x, x_adv, y)
    found = terms_of(model, objective, u, x.float(), x_adv.float(), y)
    zeroth = terms_of(model, Trades(), (), x, x_adv, y)["zeroth"][1].norm()
    return {
        name: {
            "over_zeroth": float(gradient.norm() / zeroth),
            "value_error": float((found[name][0] - value).abs() / value.abs()),
            "gradient_error": float((found[name][1] - gradient).norm() / gradient.norm()),
        }
        for name, (value, gradient) in wanted.items()
        if name != "zeroth" or len(wanted) == 1
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="zoo:digits-linf-cnn-trades")
    parser.add_argument("--n", type=int, default=128, help="test images of the digits, another part for every seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = get_recipe("digits-linf-cnn-trades")
    model, test = load(options.model).double().train(), recipe.data.load().test
    samples: dict[tuple[str, str], list[dict[str, float]]] = {}
    for seed in options.seeds:
        part = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))[: options.n]]
        x = to_float(part.x).double()
        images = x, recipe.attack(model, x, part.y, generator=torch.Generator().manual_seed(seed)), part.y
        for name, (objective, noise) in READINGS.items():
            for term, numbers in measured(model, objective, noise, images, seed).items():
                samples.setdefault((name, term), []).append(numbers)
    rows = [
        {"reading": name, "term": term, **{key: median(each[key] for each in many) for key in many[0]}}
        for (name, term), many in samples.items()
    ]
    print("| reading | term | gradient over the zeroth's | value's error | gradient's error |\n|---|---|---|---|---|")
    for row in rows:
        numbers = (f"{row[key]:.1e}" for key in ("over_zeroth", "value_error", "gradient_error"))
        print(f"| {row['reading']} | {row['term']} | {' | '.join(numbers)} |")
    settings = {"model": options.model, "n": options.n, "seeds": options.seeds}
    RESULTS.write_text(json.dumps({"environment": environment(), **settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
