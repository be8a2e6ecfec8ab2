"""A long attack can be broken off: its loops offer what they hold, and whoever runs the attack may write it down.

`for step in kept("steps", range(n), live, result)` is `range(n)` where nobody keeps anything. Inside `keeping` the
tensors of `live` and `result` before a step are written once in a period, with those of the loops around it; a later
process that finds them goes on at that step, with the same bits.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rattle.randomness import ImageStreams

LOOPS = ("parts", "restarts", "balls", "steps")  # from the outside in; a loop of one name is never inside its like
Snapshot = dict[str, dict[str, Any]]  # loop -> its next step and the variables that it begins with


@dataclass
class Keeper:
    """What the loops of one attack hold at the moment, and what an earlier process left of the same attack."""

    write: Callable[[Snapshot], None]  # called with tensors that go on changing afterwards
    every: float  # seconds between two calls
    found: Snapshot = field(default_factory=dict)  # each loop takes its own once, when it begins
    held: dict[str, tuple[int, tuple[object, ...]]] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def offer(self, loop: str, step: int, parts: tuple[object, ...]) -> None:
        """A loop is about to do a step; loops inside it are over."""
        outer = LOOPS[: LOOPS.index(loop)]
        self.held = {name: self.held[name] for name in outer if name in self.held} | {loop: (step, parts)}
        if time.monotonic() - self.last >= self.every:
            self.write({name: {"step": at} | values(held) for name, (at, held) in self.held.items()})
            self.last = time.monotonic()

    def begin(self, loop: str, parts: tuple[object, ...]) -> int:
        """The first step to do, 0 or the one that an earlier process was about to do; the parts are as it had them."""
        stored = self.found.pop(loop, {})
        if stored.keys() - {"step"} != values(parts).keys():
            self.found = {}  # nothing was stored, or by another version: loops inside this one begin afresh too
            return 0
        for name, owner, attribute in variables(parts):
            now, value = getattr(owner, attribute), stored[name]
            setattr(owner, attribute, value.to(now.device, now.dtype) if isinstance(now, Tensor) else int(value))
        return stored["step"]


def variables(parts: tuple[object, ...]) -> Iterator[tuple[str, object, str]]:
    """(its name in a snapshot, the object it belongs to, its name there) of tensors, whole numbers, random streams."""
    for number, part in enumerate(parts):
        for name, value in list(vars(part).items()):
            if isinstance(value, ImageStreams):
                yield from ((f"{number}.{name}.{own}", value, own) for own in ("key", "calls"))
            elif isinstance(value, Tensor | int):
                yield f"{number}.{name}", part, name


def values(parts: tuple[object, ...]) -> dict[str, Tensor | int]:
    return {name: getattr(owner, attribute) for name, owner, attribute in variables(parts)}


KEEPER: ContextVar[Keeper | None] = ContextVar("keeper", default=None)


@contextmanager
def keeping(write: Callable[[Snapshot], None], every: float, found: Mapping[str, dict[str, Any]]) -> Iterator[None]:
    """In the body an attack goes on from `found` and hands what it holds to `write`; see Keeper for the parameters."""
    before = KEEPER.set(Keeper(write, every, dict(found)))
    try:
        yield
    finally:
        KEEPER.reset(before)


def kept(loop: str, steps: range, *parts: object) -> Iterator[int]:
    """The steps of a loop that are left; `parts` are the objects whose variables the steps change."""
    keeper = KEEPER.get()
    for step in steps if keeper is None else steps[keeper.begin(loop, parts) :]:
        if keeper is not None:
            keeper.offer(loop, step, parts)
        yield step
