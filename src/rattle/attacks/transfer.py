"""Transfer: adversarial examples made on a surrogate and tried on the defended model (paper, Table 4)."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from rattle.attacks.base import Attack, describe
from rattle.randomness import Randomness
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Black-box transfer (Papernot et al. 2016): attacks the surrogate, and never calls the model it is given."""

    attack: Attack  # run on the surrogate
    surrogate: nn.Module = field(repr=False, compare=False)
    name: str = "surrogate"  # what the surrogate is called in results

    @property
    def threat(self) -> Threat:
        return self.attack.threat

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        return self.attack(self.surrogate, x, y, generator=generator)

    def models(self) -> dict[str, nn.Module]:
        return {self.name: self.surrogate}

    def metadata(self) -> dict[str, Any]:
        return {"kind": "Transfer", "surrogate": self.name, "attack": describe(self.attack)}
