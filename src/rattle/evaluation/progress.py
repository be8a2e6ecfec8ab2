"""The progress of an attack: images done, robust accuracy so far, and the component of an ensemble that is running."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rattle.evaluation.results import AttackResult
from rattle.runs.progress import Advance, Console


@dataclass(slots=True)
class AttackProgress:
    """Reports to a console's bar while batches are attacked."""

    console: Console
    advance: Advance
    components: Sequence[str]  # of an ensemble; none for a single attack
    robust: int = 0  # images of the finished batches
    seen: int = 0
    size: int = 0  # of the batch under way

    def begin_batch(self, size: int) -> None:
        self.size = size
        self.begin_component(0)

    def begin_component(self, number: int) -> None:
        if number < len(self.components):
            self.advance(0, part=f"{self.components[number]} ({number + 1} of {len(self.components)})")

    def end_component(self, number: int, correct: Tensor) -> None:
        """Component `number` left these images of the batch robust, [n] bool."""
        self.begin_component(number + 1)
        self.advance(0, robust=f"{100 * (self.robust + int(correct.sum())) / (self.seen + self.size):.1f} %")

    def end_batch(self, size: int, robust: int, *, cached: bool) -> None:
        """A batch is done. One from the cache took no time: the bar began with it done."""
        self.seen += size
        self.robust += robust
        self.advance(0 if cached else size, robust=f"{100 * self.robust / self.seen:.1f} %")

    def finish(self, result: AttackResult) -> None:
        """Print a line for each component of an ensemble."""
        for name, flags in result.parts.items():
            share = 100 * sum(flags) / max(len(flags), 1)
            self.console.log(f"{name}: {share:.1f} % robust, {result.part_seconds[name]:.0f} s")
