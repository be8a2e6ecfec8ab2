"""Floating-point operations of a training step, for every network and every method, and what a device makes of them.

    python -m reproduction.flops

Counted by torch's formulas for convolutions and matrix products (a multiplication and an addition are two) on tensors
without values, so in a minute whatever the network. Of a grouped convolution torch's formula counts too many backward:
mobilenetv2 looks twice as dear as it is. Images of CIFAR-10, l_inf, each recipe's own K. FAT, FAT-TRADES and
MMA are left out: their work depends on the images. Writes reproduction/results/flops.json.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from rattle.forward import PairedForward
from rattle.models import create_model, find_head
from rattle.models.registry import list_models
from rattle.objectives.base import Memory, Moment, StepContext
from rattle.objectives.registry import METHODS
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.runs.io import write_atomically
from rattle.training.step import StepInputs, step
from rattle.weights import EMA
from reproduction.method_costs import work_of

RESULTS = Path(__file__).parent / "results" / "flops.json"
IMAGES, CLASSES, META = 4, 10, torch.device("meta")
BY_IMAGES = ("fat", "fat-trades", "mma")  # their work depends on how soon images are misclassified
MORE = ("trades-1st", "trades-2nd", "trades-awp", "trades-awp-2nd", "at-2nd")
EPOCH, A100 = 50_000, 114e12  # training images; FLOP/s that a step is assumed to reach, of 312e12 in bf16


def network(name: str) -> nn.Module:
    with META:
        return create_model(name, classes=CLASSES).train()


def step_of(model_name: str, method: str) -> Callable[[], dict[str, Tensor]]:
    """A step of a recipe on tensors without values, near the end of a run: averages have begun."""
    recipe, model = get_recipe(f"cifar10-linf-{model_name}-{method}"), network(model_name)
    objective = recipe.objective
    x, index = torch.rand(IMAGES, 3, 32, 32, device=META), torch.arange(IMAGES, device=META)
    y = torch.zeros(IMAGES, dtype=torch.long, device=META)
    average = EMA().averaged(model)
    average.update_parameters(model)
    state = objective.state(images=IMAGES, classes=CLASSES, batch=x.shape)
    context = StepContext(
        moment=Moment(epoch=recipe.epochs - 1, epochs=recipe.epochs),
        draws=ImageStreams(0, index),
        memory=Memory({name: value.to(META) for name, value in state.items()}, index),
        classes=CLASSES,
        teachers={name: network(model_name) for name, (_, how) in objective.teachers.items() if how != "average"},
    )
    head = find_head(model) if objective.needs.features else None
    given = StepInputs(
        x=x,
        y=y,
        forward=PairedForward(model, objective.needs, head, context.teachers, average),
        attack=recipe.attack,
        noise=recipe.noise,
        objective=objective,
        awp=recipe.awp,
        context=context,
        shared=torch.Generator(),
        noise_samples=recipe.noise_samples,
    )
    return lambda: step(given)


def forward_flop(name: str) -> float:
    """Of one forward pass, an image."""
    model, x = network(name).eval(), torch.rand(1, 3, 32, 32, device=META)
    return work_of(lambda: model(x))


def main() -> None:
    networks = []
    for name in list_models():
        forward, trades = forward_flop(name), work_of(step_of(name, "trades-2nd")) / IMAGES
        row = {"network": name, "forward_gflop": forward / 1e9, "trades_2nd_gflop": trades / 1e9}
        networks.append({**row, "forwards": trades / forward, "epoch_pflop": trades * EPOCH / 1e15})
    methods = []
    unit = forward_flop("preact18")
    for name in (*METHODS, *MORE):
        if name not in BY_IMAGES and name != "sota":  # sota needs generated images
            methods.append({"method": name, "forwards": work_of(step_of("preact18", name)) / IMAGES / unit})
    methods.sort(key=lambda row: row["forwards"])
    target = work_of(step_of("wrn28-10", "trades")) / IMAGES * EPOCH
    a100 = {"epoch_pflop": target / 1e15, "assumed_tflop_a_second": A100 / 1e12, "seconds": target / A100}
    found = {"networks": networks, "methods": methods, "a100_trades_wrn28_10": a100}
    write_atomically(RESULTS, (json.dumps(found, indent=1) + "\n").encode())
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
