"""Evaluation: one flag per image per attack; robust accuracy is their mean, the worst case an AND.

A flag is True where the image is classified rightly and the attack found nothing. No flag is lowered on an attack's
word: its point must lie inside the ball and [0, 1] and be misclassified in a fresh forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rattle import distributed
from rattle.attacks import Attack, named
from rattle.attacks.contract import check_batch, check_labels, logits_of
from rattle.console import Console, Silent
from rattle.data import to_float
from rattle.errors import RattleError
from rattle.randomness import Streams
from rattle.settings import to_plain
from rattle.statistics import wilson
from rattle.threat import Threat
from rattle.weights import eval_mode

Attacks = Mapping[str, Attack] | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one attack did to n images."""

    attack: dict[str, Any]  # its full settings
    flags: list[bool]  # robust, image by image
    seconds: float

    @property
    def accuracy(self) -> float:
        return sum(self.flags) / len(self.flags)

    def to_plain(self) -> dict[str, Any]:
        return {
            "settings": self.attack,
            **share("robust", self.flags),
            "seconds": self.seconds,
            "flags": ints(self.flags),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What every attack did to the same n images."""

    clean: list[bool]  # classified rightly, image by image
    verdicts: dict[str, Verdict]

    @property
    def n(self) -> int:
        return len(self.clean)

    @property
    def clean_accuracy(self) -> float:
        return sum(self.clean) / self.n

    @property
    def worst_case(self) -> list[bool]:
        """Robust to every attack."""
        return [all(flags) for flags in zip(self.clean, *(v.flags for v in self.verdicts.values()), strict=True)]

    @property
    def robust_accuracy(self) -> float:
        return sum(self.worst_case) / self.n

    def to_plain(self) -> dict[str, Any]:
        """What results/*.json holds and --json prints: `robust` is the worst case over the attacks."""
        return {
            "n": self.n,
            **share("clean", self.clean),
            **share("robust", self.worst_case),
            "seconds": sum(v.seconds for v in self.verdicts.values()),
            "attacks": {name: verdict.to_plain() for name, verdict in self.verdicts.items()},
            "clean_flags": ints(self.clean),
        }


def share(name: str, flags: Sequence[bool]) -> dict[str, Any]:
    """An accuracy and its Wilson 95 % interval."""
    interval = wilson(sum(flags), len(flags))
    return {f"{name}_accuracy": sum(flags) / len(flags), f"{name}_interval": [interval.low, interval.high]}


def ints(flags: Sequence[bool]) -> list[int]:
    return [int(flag) for flag in flags]


def describe(attack: Attack) -> dict[str, Any]:
    """An attack's class and full settings."""
    plain = to_plain(attack)
    settings = plain if isinstance(plain, dict) else {"threat": to_plain(attack.threat)}  # a class of the user's own
    return {"kind": type(attack).__name__, **settings}


def image_batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(index, images in [0, 1], labels), in order; of several ranks each takes its share of the same batches."""
    for index in torch.arange(len(x), device=y.device).split(size)[distributed.rank() :: distributed.world()]:
        part = x[index]
        yield index, part if part.is_floating_point() else to_float(part), y[index]


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images the model classifies rightly, [n] bool, in one fresh forward pass."""
    with torch.no_grad():
        logits = logits_of(model, x)
    check_labels(logits, y)
    return logits.argmax(1) == y


def survivors(model: nn.Module, attack: Attack, x: Tensor, y: Tensor, index: Tensor, *, seed: int) -> Tensor:
    """Which of these images withstand the attack, [n] bool; each draws from its own stream (seed, index)."""
    x_adv = attack(model, x.clone(), y, generator=Streams(seed, index.to(x.device)))  # some write into their input
    counts = attack.threat.contains(x_adv, x)
    return classified(model, x_adv, y) | ~counts


def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attacks: Attacks,
    *,
    threat: Threat | None = None,
    batch_size: int = 250,
    seed: int = 0,
    console: Console | Silent | None = None,
) -> Evaluation:
    """Run attacks on images (uint8, or floats in [0, 1]); attacks are named (on `threat`) or a dict of your own.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.randint(3, (8,))
    >>> result = evaluate(model, x, y, ["fgsm", "pgd20"], threat=Threat(epsilon=0.1))
    >>> result.robust_accuracy <= result.clean_accuracy
    True
    """
    console = console or Silent()
    chosen = attacks if isinstance(attacks, Mapping) else {name: named(name, threat or Threat()) for name in attacks}
    if batch_size < 1:
        raise RattleError(f"batch-size must be >= 1, got {batch_size}")
    if len(x) != len(y):
        raise RattleError(f"{len(x)} images but {len(y)} labels")
    some = x if x.is_floating_point() else to_float(x[:1])  # bytes are in [0, 1] once divided
    check_batch(some, y[: len(some)])
    with eval_mode(model):
        clean = torch.zeros(len(x), dtype=torch.bool, device=y.device)
        for index, part, label in image_batches(x, y, batch_size):
            clean[index] = classified(model, part, label)
        clean = distributed.total(clean.int()).bool()
        verdicts = {}
        for name, attack in chosen.items():
            begun, flags = time.perf_counter(), torch.zeros_like(clean)
            with console.bar(name, len(x)) as advance:
                for index, part, label in image_batches(x, y, batch_size):
                    alive = index[clean[index]]
                    if len(alive):
                        keep = clean[index]
                        flags[alive] = survivors(model, attack, part[keep], label[keep], alive, seed=seed)
                    advance(len(index), robust=float(flags[: int(index[-1]) + 1].float().mean()))
            flags = distributed.total(flags.int()).bool()
            seconds = time.perf_counter() - begun
            verdicts[name] = Verdict(attack=describe(attack), flags=flags.tolist(), seconds=seconds)
    return Evaluation(clean=clean.tolist(), verdicts=verdicts)
