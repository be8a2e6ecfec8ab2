"""What people see of an attack while it runs: images, robust accuracy so far, and the parts of an ensemble."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from rattle.evaluation.results import AttackResult
from rattle.runs import distributed
from rattle.runs.progress import Advance, Console


@dataclass(slots=True)
class Shown:
    """An attack's progress. A part's line is printed within the last batch, as soon as its numbers are final."""

    console: Console
    advance: Advance
    parts: Sequence[str]  # their names; none for a single attack
    flags: Tensor  # [1 + parts, n] and
    seconds: Tensor  # [1 + parts], of the batches that are through
    cached: Collection[int]  # the first images of batches that an earlier call has attacked
    seen: int = 0  # images of those batches
    size: int = 0  # of the batch under way
    last: bool = False  # whether the batch under way completes the flags
    said: int = 0  # parts whose line was printed

    def begin(self, index: Tensor) -> None:
        """The images of a batch are attacked now."""
        self.size = len(index)
        self.last = int(index[-1]) + 1 == self.flags.shape[1] and not distributed.active()
        self.show_part(0)

    def show_part(self, number: int) -> None:
        if number < len(self.parts):
            self.advance(0, part=f"{self.parts[number]} ({number + 1} of {len(self.parts)})")

    def __call__(self, number: int, robust: Tensor, seconds: float) -> None:
        """Part `number` left these images of the batch robust, [n] bool, after so many seconds."""
        if self.last:
            count = int(self.flags[1 + number].sum()) + int(robust.sum())
            self.say(number, count / self.flags.shape[1], float(self.seconds[1 + number]) + seconds)
        self.show_part(number + 1)
        self.advance(0, robust=self.share(int(robust.sum()), self.size))

    def end(self, index: Tensor) -> None:
        """The flags of a batch are known. One from the cache took no time: the bar began with it done."""
        self.seen += len(index)
        self.advance(0 if int(index[0]) in self.cached else len(index), robust=self.share())

    def share(self, more: int = 0, size: int = 0) -> str:
        """Robust accuracy so far, `more` of `size` images of the batch under way counted in."""
        return f"{100 * (int(self.flags[0].sum()) + more) / (self.seen + size):.1f} %"

    def finish(self, result: AttackResult) -> None:
        """Print what the last batch did not: it was in the cache, had nothing to attack, or other ranks took part."""
        for number, (name, flags) in enumerate(result.parts.items()):
            if number >= self.said:
                self.say(number, sum(flags) / max(len(flags), 1), result.part_seconds[name])

    def say(self, number: int, share: float, seconds: float) -> None:
        self.console.log(f"{self.parts[number]}: {100 * share:.1f} % robust, {seconds:.0f} s")
        self.said = number + 1


@contextmanager
def showing(
    console: Console,
    name: str,
    parts: Sequence[str],
    flags: Tensor,
    seconds: Tensor,
    *,
    batch_size: int,
    cached: Collection[int],
) -> Iterator[Shown]:
    """The progress of the attack of this name over this rank's batches; the other parameters are Shown's fields."""
    n = flags.shape[1]
    own = range(0, n, batch_size)[distributed.rank() :: distributed.world_size()]
    sizes = {first: min(batch_size, n - first) for first in own}
    done = sum(size for first, size in sizes.items() if first in cached)
    with console.progress(name, sum(sizes.values()), done=done) as advance:
        yield Shown(console, advance, parts, flags, seconds, cached)
