"""AWP: restore w and then step (ours), against step at w + v and then subtract v (Wu et al.'s reference order).

    python -m reproduction.awp_order --steps 1 10 100 --seeds 0 1 2

Weight decay acts at w in the first and at w + v in the second, and subtracting drifts: by how much, after how long?
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from rattle.data.registry import batches
from rattle.forward import PairedForward
from rattle.inputs import to_float
from rattle.models import find_head
from rattle.randomness import ImageStreams
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.training.state import init_state
from rattle.training.step import total
from rattle.weights import perturbed


def train(recipe: Recipe, steps: int, *, restore_first: bool, nudge: float = 0.0) -> list[torch.Tensor]:
    """The weights after `steps` steps of TRADES-AWP on the digits, from initial weights scaled by 1 + nudge."""
    data = recipe.data.load()
    learner = init_state(recipe, data)
    with torch.no_grad():
        for p in learner.model.parameters():
            p.mul_(1 + nudge)
    model, optimizer, awp, objective = learner.model, learner.optimizer, recipe.awp, recipe.objective
    assert awp is not None
    views = PairedForward(model, objective.needs, find_head(model))
    done = 0
    while done < steps:
        for index in batches(len(data.train), recipe.batch_size, seed=recipe.seed, epoch=done):
            part = data.train[index]
            x, y = to_float(part.x), part.y
            x_adv = recipe.attack(model, x, y, generator=ImageStreams(done, index))
            v = awp(model, awp.gradients(model, lambda x=x, a=x_adv, y=y: total(objective(views(x, a), y))))
            optimizer.zero_grad()
            stepped: dict[str, torch.Tensor] = {}
            with perturbed(model, v):
                total(objective(views(x, x_adv), y)).backward()
                if not restore_first:
                    optimizer.step()
                    stepped = {name: p.detach() - v.get(name, 0) for name, p in model.named_parameters()}
            if restore_first:
                optimizer.step()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(stepped.get(name, p))
            done += 1
            if done == steps:
                break
    return [p.detach().clone() for p in model.parameters()]


def main() -> None:
    parser = argparse.ArgumentParser(description="restore then step, against step then subtract")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        recipe = replace(get_recipe("digits-linf-cnn-trades-awp-2nd"), seed=seed)
        for steps in options.steps:
            ours = train(recipe, steps, restore_first=True)
            reference = train(recipe, steps, restore_first=False)
            control = train(recipe, steps, restore_first=True, nudge=1e-7)
            print(
                f"seed {seed}, {steps} steps: |w - w_reference| / |w| = {apart(ours, reference):.2e}; "
                f"control, initial weights nudged by 1e-7: {apart(ours, control):.2e}",
                flush=True,
            )


def apart(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Relative distance of two sets of weights."""
    distance = sum(float((a - b).square().sum()) for a, b in zip(ours, theirs, strict=True))
    return (distance / sum(float(a.square().sum()) for a in ours)) ** 0.5


if __name__ == "__main__":
    main()
