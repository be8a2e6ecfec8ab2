"""Two curves at equal x: their difference over the range that both cover, with intervals over seeds and images.

Arrays are flags as floats, [points, seeds, images]; x is the accuracy held equal, y the one compared. No torch.
"""

import numpy as np

from rattle.runs.arrays import Array
from rattle.stats import LEVEL, Interval

REPLICATES = 500  # of each bootstrap: the standard error is known to 3 %
GRID = 51  # values of x over which a difference is averaged


def gap_at_equal(x: Array, y: Array, base_x: Array, base_y: Array) -> tuple[Array, float, float]:
    """y of a method less y of the baseline at equal x: at each point of the method, NaN outside the baseline's range,
    and last the mean over the range that both cover, NaN if there is none; that range.

    Between points both curves are straight, so that neither leaves the range of its neighbours.

    >>> gaps, low, high = gap_at_equal(*(np.array(v) for v in ([1, 3], [5.0, 5.0], [0, 2], [4.0, 6.0])))
    >>> gaps.round(3).tolist(), low, high
    ([0.0, nan, -0.5], 1.0, 2.0)
    """
    order, base_order = np.argsort(x), np.argsort(base_x)
    low, high = float(max(x.min(), base_x.min())), float(min(x.max(), base_x.max()))
    inside = (x >= base_x.min()) & (x <= base_x.max())
    at = np.where(inside, y - np.interp(x, base_x[base_order], base_y[base_order]), np.nan)
    grid = np.linspace(low, high, GRID)
    gap = np.interp(grid, x[order], y[order]) - np.interp(grid, base_x[base_order], base_y[base_order])
    return np.append(at, gap.mean() if low < high else np.nan), low, high


def compare_at_equal(
    x: Array, y: Array, base_x: Array, base_y: Array
) -> tuple[float, float, list[tuple[float, Interval]]]:
    """The range that two curves cover (low, high), and differences with intervals: at each point of the first, last the
    mean over the range. NaN where there is none. A bootstrap over seeds and one over images, both paired.

    Seeds and images are drawn for all points of both curves together. Few seeds vary less among themselves than their
    draws should, so that variance is scaled by S / (S - 1), and the quantile is Student's with the degrees of freedom
    of the sum of both variances (Satterthwaite 1946).
    """
    from scipy.stats import t

    curves = (x, y, base_x, base_y)
    _, seeds, images = x.shape
    estimate, low, high = gap_at_equal(*(curve.mean((1, 2)) for curve in curves))
    known = ~np.isnan(estimate)
    generator = np.random.default_rng(0)
    variances = []
    for axis, size in ((1, seeds), (2, images)):
        variance = np.zeros(len(estimate))
        if size > 1:
            means = [curve.mean(3 - axis) for curve in curves]  # [points, size]
            draws = []
            for weights in generator.multinomial(size, np.full(size, 1 / size), REPLICATES) / size:
                drawn, _, _ = gap_at_equal(*(each @ weights for each in means))
                draws.append(drawn)
            variance[known] = np.nanvar(np.array(draws)[:, known], axis=0) * size / (size - 1)
        variances.append(variance)
    by_seeds, by_images = variances
    total = by_seeds + by_images
    parts = by_seeds**2 / max(seeds - 1, 1) + by_images**2 / max(images - 1, 1)
    freedom = np.maximum(total**2 / np.maximum(parts, 1e-300), 1)
    half = np.sqrt(total) * t.ppf((1 + LEVEL) / 2, freedom)
    intervals = [Interval(float(e - h), float(e + h)) for e, h in zip(estimate, half, strict=True)]
    return low, high, list(zip(estimate.tolist(), intervals, strict=True))
