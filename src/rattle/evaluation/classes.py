"""The class that does worst, and how far classes are apart. No torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rattle.runs.io import Plain
from rattle.stats import Interval, minimum_interval

FEWEST_OF_CLASS = 10  # images of a class from which on its accuracy is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstClass:
    """The class of the lowest accuracy among these images."""

    label: int
    accuracy: float
    n: int  # its images
    interval: Interval  # 95 % of the lowest true accuracy of a class, whichever class has it
    best: float  # accuracy of the class that does best

    @property
    def spread(self) -> float:
        """Best less worst accuracy of a class; chance alone makes some of it, more where classes are small."""
        return self.best - self.accuracy

    def to_plain(self) -> Plain:
        found = {"label": self.label, "accuracy": self.accuracy, "interval": list(self.interval)}
        return found | {"n": self.n, "best": self.best, "spread": self.spread}


def worst_class(flags: Sequence[float], labels: Sequence[int]) -> WorstClass | None:
    """The class that does worst; None if there is one class, or one with few images.

    >>> worst = worst_class([1] * 15 + [0] * 5, [0] * 10 + [1] * 10)
    >>> worst.label, worst.accuracy, worst.n, worst.spread
    (1, 0.5, 10, 0.5)
    """
    sizes = Counter(labels[: len(flags)])
    correct = dict.fromkeys(sizes, 0.0)
    for flag, label in zip(flags, labels, strict=False):
        correct[label] += flag
    if len(sizes) < 2 or min(sizes.values()) < FEWEST_OF_CLASS:
        return None
    shares = {label: correct[label] / size for label, size in sizes.items()}
    worst = min(shares, key=lambda label: shares[label])
    return WorstClass(
        label=worst,
        accuracy=shares[worst],
        n=sizes[worst],
        interval=minimum_interval([correct[label] for label in sizes], list(sizes.values())),
        best=max(shares.values()),
    )
