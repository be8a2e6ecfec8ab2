"""APGD towards the classes whose linearised boundary is nearest (the idea of MALT, Melamed et al. 2024).

Importing this registers it as the attack `apgd-t-linearised`; the command line takes it as a --plugin.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rattle.attacks.apgd import APGD
from rattle.attacks.fab import linear_boundaries
from rattle.attacks.registry import register_attack
from rattle.attacks.rows import FlatModel, RunResult, TargetRows, best_of_runs, likeliest
from rattle.errors import RattleError
from rattle.inputs import check_batch
from rattle.randomness import ImageStreams, Randomness
from rattle.settings import Count, check_settings
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearisedAPGD:
    """`apgd-t` on fewer targets: those of smallest (z_y - z_t) / ||grad (z_t - z_y)||_dual at the image.

    Not a part of AutoAttack, which takes the likeliest classes. Ranking costs a forward and a backward a candidate.
    """

    threat: Threat = Threat()
    targets: Count = 3  # one run each; at most C - 1
    candidates: Count = 100  # the likeliest wrong classes; the targets are chosen among them
    steps: Count = 100  # of each run
    restarts: Count = 1  # runs from random points; images broken by one take no part in the next

    def __post_init__(self) -> None:
        check_settings(self, "attack")
        if self.candidates < self.targets:
            raise RattleError(f"attack.candidates must be >= attack.targets {self.targets}, got {self.candidates}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y)
        return best_of_runs(self, model, x, y, generator, targets=self.targets, share=0.75)

    def run(self, model: FlatModel, rows: TargetRows, draws: ImageStreams, restart: int) -> RunResult:
        """APGD's run, with the nearest classes in place of the likeliest."""
        count = int((rows.image == rows.image[0]).sum())  # targets of an image, side by side
        x, y = rows.x[::count], rows.y[::count]
        with torch.no_grad():
            logits = model.logits(x)
        rows.target = self.rank(model, x, logits, y)[:, :count].flatten()
        attack = APGD(
            threat=self.threat,
            loss="dlr-targeted",
            targets=self.targets,
            steps=self.steps,
            restarts=self.restarts,
            eps_schedule=self.threat.norm == "l1",
        )
        return attack.run(model, rows, draws, restart)

    def rank(self, model: FlatModel, rows: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """Of the likeliest candidates those of smallest linearised distance, the nearest first, [n, targets]."""
        classes = likeliest(logits, y, self.candidates)
        planes = linear_boundaries(model, rows, y, classes, self.threat.norm)
        nearest = torch.cat([away for _, _, away in planes], 1).argsort(dim=1, stable=True)
        return classes.gather(1, nearest[:, : self.targets])


register_attack("apgd-t-linearised", lambda threat: LinearisedAPGD(threat=threat))
