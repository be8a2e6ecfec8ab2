"""Sums of the losses over an epoch, and what is raised when one is not finite."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rattle.errors import RattleError


class LossMeter:
    """Sums of the terms over an epoch, kept on the device; remembers the first step whose loss was not finite.

    Losses are read at every step on a CPU; on a GPU only at every 50th, so that the loop does not wait for the device.
    """

    def __init__(self, sums: Mapping[str, float], device: torch.device) -> None:
        self.names = list(sums)
        self.sums = torch.tensor(list(sums.values()), dtype=torch.float64, device=device)
        self.bad_step = torch.full((), -1, device=device)
        self.bad_terms = torch.zeros_like(self.sums)
        self.every = 1 if device.type == "cpu" else 50

    def add(self, terms: Mapping[str, Tensor], step: int) -> None:
        values = torch.stack(tuple(terms.values())).to(torch.float64)
        if not self.names:
            self.names = list(terms)
            self.sums, self.bad_terms = torch.zeros_like(values), torch.zeros_like(values)
        elif self.names != list(terms):
            raise RattleError(f"the checkpoint's sums are of {', '.join(self.names)}, not of {', '.join(terms)}")
        self.sums = self.sums + values
        new = (self.bad_step < 0) & ~torch.isfinite(values).all()
        self.bad_step = torch.where(new, step, self.bad_step)
        self.bad_terms = torch.where(new, values, self.bad_terms)

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def read(self) -> dict[str, float]:
        """The sums so far; raises if a loss was not finite."""
        if int(self.bad_step) >= 0:
            terms = dict(zip(self.names, self.bad_terms.tolist(), strict=True))
            raise Diverged(int(self.bad_step), terms)
        return dict(zip(self.names, self.sums.tolist(), strict=True))


class Diverged(RattleError):
    """A loss or weight that is not finite."""

    def __init__(self, step: int, terms: Mapping[str, float]) -> None:
        self.step = step
        values = ", ".join(f"{name} {value:.4g}" for name, value in terms.items())
        super().__init__(f"the loss diverged at step {step} ({values})")
