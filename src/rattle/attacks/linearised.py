"""APGD towards the classes whose linearised boundary is nearest (the idea of MALT, Melamed et al. 2024)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle.attacks.apgd import APGD
from rattle.attacks.fab import linear_boundaries
from rattle.attacks.rows import FlatModel, best_of_runs, likeliest
from rattle.errors import RattleError
from rattle.inputs import check_batch
from rattle.randomness import Randomness
from rattle.settings import Count, check_settings
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearisedAPGD:
    """`apgd-t` on fewer targets: those of smallest (z_y - z_t) / ||grad (z_t - z_y)||_dual at the image.

    Not a part of AutoAttack, which takes the likeliest classes. Ranking costs a forward and a backward a candidate.
    """

    threat: Threat = Threat()
    targets: Count = 3  # one run each; at most C - 1
    candidates: Count = 100  # the likeliest wrong classes, of which the targets are chosen
    steps: Count = 100  # of each run
    restarts: Count = 1  # runs from random points; images broken by one take no part in the next

    def __post_init__(self) -> None:
        check_settings(self, "attack")
        if self.candidates < self.targets:
            raise RattleError(f"attack.candidates must be >= attack.targets {self.targets}, got {self.candidates}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        attack = APGD(
            threat=self.threat,
            loss="dlr-targeted",
            targets=self.targets,
            steps=self.steps,
            restarts=self.restarts,
            eps_schedule=self.threat.norm == "l1",
        )
        return best_of_runs(attack, model, x, y, generator, targets=self.targets, share=0.75, choose=self.rank)

    def rank(self, model: FlatModel, rows: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """Of the likeliest candidates those of smallest linearised distance, the nearest first, [n, targets]."""
        classes = likeliest(logits, y, self.candidates)
        planes = linear_boundaries(model, rows, y, classes, self.threat.norm)
        nearest = torch.cat([away for _, _, away in planes], 1).argsort(dim=1, stable=True)
        return classes.gather(1, nearest[:, : self.targets])
