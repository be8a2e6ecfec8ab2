"""One random stream per image: what an image draws depends on the seed and its own index alone.

A `torch.Generator` hands numbers to a batch, so what an image gets depends on its neighbours. Evaluations that are
sharded, resumed or packed must not, hence a counter-based generator: draw c of image i is mix(seed, i, c), with the
64-bit finaliser of SplitMix (Steele, Lea and Flood 2014) as `mix`. Nothing has to be saved to resume it.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from rattle.errors import RattleError

GOLDEN = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
UNIT_24 = 2.0**-24  # uniforms carry 24 bits, what a float32 holds


def signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift; `>>` on int64 would drag the sign along."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, wrapping."""
    z = (z ^ shift_right(z, 30)) * signed(MIX_1)
    z = (z ^ shift_right(z, 27)) * signed(MIX_2)
    return z ^ shift_right(z, 31)


class ImageStreams:
    """Independent streams, one per image of a batch.

    >>> whole = ImageStreams(seed=0, index=torch.arange(4))
    >>> part = ImageStreams(seed=0, index=torch.tensor([2]))
    >>> bool((whole.uniform(3)[2] == part.uniform(3)[0]).all())
    True
    """

    def __init__(self, seed: int, index: Tensor) -> None:
        self.seed = seed
        self.key = mix(mix(index.to(torch.int64) + signed(GOLDEN * (seed + 1))) ^ signed(GOLDEN))
        self.calls = 0

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, keep: Tensor) -> ImageStreams:
        """The streams of the images that stay, at the same place in their sequence."""
        some = copy.copy(self)
        some.key = self.key[keep]
        return some

    def bits(self, *shape: int) -> Tensor:
        """64 fresh bits for each element, [n, *shape]."""
        self.calls += 1
        element = torch.arange(math.prod(shape), device=self.key.device).add_(self.calls << 32)
        return mix(self.key[:, None] + element * signed(GOLDEN)).view(len(self), *shape)

    def uniform(self, *shape: int) -> Tensor:
        """U[0, 1), float32, [n, *shape]."""
        return shift_right(self.bits(*shape), 40).to(torch.float32) * UNIT_24

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1), float32, [n, *shape], by Box and Muller from the two halves of each word."""
        bits = self.bits(*shape)
        radius = (shift_right(bits, 40).to(torch.float32) + 1) * UNIT_24  # (0, 1]: its logarithm is finite
        angle = ((bits >> 8) & (2**24 - 1)).to(torch.float32) * (2 * math.pi * UNIT_24)
        return radius.log_().mul_(-2).sqrt_() * angle.cos_()

    def integers(self, high: int, *shape: int) -> Tensor:
        """Whole numbers in [0, high), int64, [n, *shape]."""
        return shift_right(self.bits(*shape), 33) % high

    def signs(self, *shape: int) -> Tensor:
        """-1 or +1, float32, [n, *shape]."""
        return (shift_right(self.bits(*shape), 63) * 2 - 1).to(torch.float32)


Randomness = ImageStreams | torch.Generator | None


def streams(generator: Randomness, n: int, device: torch.device | str = "cpu") -> ImageStreams:
    """What an attack on n images draws from: streams as they are, or fresh ones seeded by a torch generator (None:
    torch's own), on the device of the images."""
    if isinstance(generator, ImageStreams):
        if len(generator) != n:
            raise RattleError(f"{len(generator)} random streams for {n} images")
        return generator
    if not isinstance(generator, torch.Generator | None):
        raise RattleError(f"the generator must be a torch.Generator, got {generator!r}")
    own = "cpu" if generator is None else generator.device
    seed = int(torch.randint(2**62, (), generator=generator, device=own))
    return ImageStreams(seed, torch.arange(n, device=device))


def derive_seed(seed: int, *path: int) -> int:
    """A seed for one purpose, place or moment, far from every other: fork(seed, epoch, rank)."""
    for part in path:
        seed = int(mix(torch.tensor(signed(seed * GOLDEN + part + 1))))
    return seed & (2**62 - 1)
