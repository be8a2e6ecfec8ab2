"""Expected calibration error: how far confidences are from accuracies, on clean and on attacked images. No torch."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rattle.runs.io import Plain
from rattle.stats import Interval, absolute_sum_interval

Values = tuple[float, ...]  # image by image, or bin by bin
BINS = 15  # of equal width, as in Guo et al. 2017, so that numbers can be set beside published ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Confidences of n images, of the class that each is taken for, against the share that is right."""

    error: float  # mean over images of |accuracy - confidence| of their bin
    interval: Interval  # 95 %
    confidence: Values  # mean of each bin that has images: a reliability diagram
    accuracy: Values  # of each such bin
    sizes: tuple[int, ...]  # images in each such bin

    def to_plain(self) -> Plain:
        return {"error": self.error, "interval": list(self.interval), "bins": BINS}


@lru_cache(maxsize=1000)  # a page asks for each several times
def calibration(confidence: Values, correct: Values) -> Calibration | None:
    """The expected calibration error (Naeini et al. 2015), with an interval over images; None without confidences.

    The error of finite samples is too large, for noise counts as miscalibration: `absolute_sum_interval` allows for it.

    >>> found = calibration((0.9,) * 10, (1,) * 6 + (0,) * 4)
    >>> round(found.error, 3), found.confidence, found.accuracy, found.sizes
    (0.3, (0.9,), (0.6,), (10,))
    """
    if not confidence:
        return None
    sure, right = np.asarray(confidence, dtype=float), np.asarray(correct, dtype=float)
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    sizes = np.bincount(bins, minlength=BINS)
    means = [np.bincount(bins, values, BINS)[sizes > 0] / sizes[sizes > 0] for values in (sure, right)]
    confidences, accuracies = (tuple(values.round(6).tolist()) for values in means)
    return Calibration(
        error=float(np.abs(np.bincount(bins, right - sure, BINS)).sum() / len(sure)),
        interval=absolute_sum_interval(right - sure, bins),
        confidence=confidences,
        accuracy=accuracies,
        sizes=tuple(sizes[sizes > 0].tolist()),
    )
