"""Robust accuracy against epsilon."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from rattle.attacks import Attack
from rattle.data.decode import Pictures
from rattle.errors import RattleError
from rattle.evaluation.cache import finish
from rattle.evaluation.evaluate import answers_at_random, classify, make_plan, run_attack
from rattle.evaluation.results import save_curve
from rattle.inputs import AnyArray, Given
from rattle.weights import eval_mode


def curve(
    model: nn.Module,
    x: Given | Pictures,
    y: AnyArray | None,
    attacks: Mapping[float, Attack],  # the attack at each epsilon; at 0 the clean images count and it is not run
    *,
    name: str = "attack",  # of the attack, and so of the file
    metadata: Mapping[str, Any] | None = None,
    **settings: Any,  # out, index, batch_size, jobs, seed, stop, console
) -> dict[float, list[bool]]:
    """Flags at each epsilon, never rising: an image broken at one epsilon counts as broken at every larger one.

    With a folder `out` it writes out/NAME-curve.json. Parameters that are not explained here are those of `evaluate`.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> from rattle import Threat, get_attack
    >>> flags = curve(model, x, y, {e: get_attack("pgd5", Threat(epsilon=e)) for e in (0, 0.1, 0.2)})
    >>> sum(flags[0.2]) <= sum(flags[0.1]) <= sum(flags[0])
    True
    """
    if not attacks:
        return {}
    plan = make_plan(model, x, y, **settings)
    names = {epsilon: f"{name}-{epsilon:.9g}" for epsilon in sorted(attacks)}
    points = {}
    with eval_mode(plan.model):
        if answers_at_random(plan):
            raise RattleError("the model answers at random, and a curve counts flags: evaluate each epsilon instead")
        robust, _ = classify(plan)
        for epsilon, each in names.items():
            if epsilon:
                robust = torch.tensor(run_attack(plan, each, attacks[epsilon], robust).flags)
            points[epsilon] = robust.tolist()
    if plan.out is not None:
        finish(partial(save_curve, name, points, metadata or {}, plan.out), plan.out, names.values())
    return points
