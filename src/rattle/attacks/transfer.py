"""Transfer: adversarial examples made on a surrogate and tried on the defended model (paper, Table 4)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rattle.attacks.base import Attack, AttackExtras, attack_mode, describe_attack
from rattle.inputs import accepts_channels_last
from rattle.randomness import Randomness
from rattle.settings import Plain
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(AttackExtras):
    """Black-box transfer (Papernot et al. 2016): attacks the surrogate, and never calls the model it is given."""

    attack: Attack  # run on the surrogate
    surrogate: nn.Module = field(repr=False, compare=False)
    name: str = "surrogate"  # what the surrogate is called in results

    @property
    def threat(self) -> Threat:
        return self.attack.threat

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        with attack_mode(self.surrogate):  # it may take another layout than the model, whose own is returned
            layout = torch.preserve_format if accepts_channels_last(self.surrogate, x) else torch.contiguous_format
        found = self.attack(self.surrogate, x.clone(memory_format=layout), y, generator=generator)
        return torch.empty_like(x).copy_(found)

    def models(self) -> dict[str, nn.Module]:
        return {self.name: self.surrogate}

    def metadata(self) -> Plain:
        return {"kind": "Transfer", "surrogate": self.name, "attack": describe_attack(self.attack)}
