"""Benchmarks: training steps, PGD-20 and AutoAttack's parts beside plain twins and the convolutions' own limit."""

from rattle.bench.curves import Curve, growth
from rattle.bench.report import RATIOS, chart, growth_chart, rows, to_plain
from rattle.bench.run import GROUPS, Result, bench, trace
from rattle.bench.setup import Setup, prepare

__all__ = [
    "GROUPS",
    "RATIOS",
    "Curve",
    "Result",
    "Setup",
    "bench",
    "chart",
    "growth",
    "growth_chart",
    "prepare",
    "rows",
    "to_plain",
    "trace",
]
