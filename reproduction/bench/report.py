"""A benchmark as a table, as JSON and as a bar chart."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rattle.runs.source import environment
from reproduction.bench.cases import AUTHORS, AUTHORS_AWP, COMPONENTS, PGD20, PUBLISHED, TEXTBOOK
from reproduction.bench.measure import Rounds
from reproduction.bench.run import LIMIT, Curve, Result

ZEROTH, SECOND, AWP_SECOND = "TRADES", "TRADES 1st+2nd", "TRADES-AWP 1st+2nd"
ALL_OURS, ALL_PYAUTOATTACK = "our components", "pyautoattack's components"
RATIOS = {  # name -> what it is, its target for PreAct-ResNet-18 of full width, and the two cases that are compared
    "second_over_zeroth_time": ("1st+2nd over TRADES, time", "at most 1.03", SECOND, ZEROTH),
    "second_over_zeroth_memory": ("1st+2nd over TRADES, memory", "at most 1.03", SECOND, ZEROTH),
    "authors_over_second_time": ("the authors' algorithm over 1st+2nd, time", "at least 2.3", AUTHORS, SECOND),
    "authors_over_second_memory": ("the authors' algorithm over 1st+2nd, memory", "at least 2", AUTHORS, SECOND),
    "authors_awp_over_awp_time": ("the authors' AWP over AWP 1st+2nd, time", "", AUTHORS_AWP, AWP_SECOND),
    "published_trades_over_trades_time": ("TRADES as published over TRADES, time", "at least 1.5", PUBLISHED, ZEROTH),
    "textbook_pgd20_over_pgd20_time": ("textbook PGD-20 over PGD-20, time", "at least 1.5", TEXTBOOK, PGD20),
    "reference_over_autoattack_time": ("pyautoattack over our components, time", "", ALL_PYAUTOATTACK, ALL_OURS),
    "conv_limit_fraction": ("share of a 1st+2nd step in convolutions at their best", "at least 0.75", LIMIT, SECOND),
}


def ratios(result: Result) -> dict[str, Rounds | None]:
    """Every ratio by its name; None where a side of it was not measured."""
    memory = {name: Rounds((count,)) for name, count in result.memory.items()}  # does not vary between rounds
    seconds = {name: timing[result.setup.ratio_clock] for name, timing in result.seconds.items()}
    for whole, suffix in ((ALL_OURS, ""), (ALL_PYAUTOATTACK, ", pyautoattack")):
        parts = [seconds[name + suffix].values for name in COMPONENTS if name + suffix in seconds]
        if len(parts) == len(COMPONENTS):
            seconds[whole] = Rounds(tuple(map(sum, zip(*parts, strict=True))))
    if SECOND in result.limit:
        seconds[LIMIT] = result.limit[SECOND]
    found: dict[str, Rounds | None] = {}
    for name, (_, _, above, below) in RATIOS.items():
        values = memory if name.endswith("_memory") else seconds
        found[name] = values[above] / values[below] if above in values and below in values else None
    return found


def rows(result: Result) -> list[list[str]]:
    """The table on the terminal: a case a line."""
    return [
        [
            name if case.kind == "ours" else f"  {name}",
            str(result.seconds[name]["wall"]),
            f"{result.images_per_second(name):.1f}",
            f"{result.memory[name] / 2**20:.1f}",
            f"{result.flop[name] / 1e9:.1f}" if name in result.flop else "",
            f"{result.share(name):.2f}" if name in result.limit else "",
        ]
        for name, case in result.cases.items()
    ]


def ratio_rows(result: Result) -> list[list[str]]:
    return [
        [RATIOS[name][0], str(value) if value else "not measured", RATIOS[name][1]]
        for name, value in ratios(result).items()
    ]


def to_plain(result: Result, curves: Sequence[Curve] = ()) -> dict[str, Any]:
    """What --json writes."""
    empty = {"median": None, "low": None, "high": None}
    cases: dict[str, dict[str, Any]] = {
        name: {
            "group": case.group,
            "kind": case.kind,
            "seconds": result.seconds[name]["wall"].summary(),
            "images_per_second": result.images_per_second(name),
            "peak_bytes": result.memory[name],
            "rounds": result.seconds[name]["wall"].values,
            "processor_rounds": result.seconds[name]["processor"].values,
        }
        for name, case in result.cases.items()
    }
    for name, alone in result.limit.items():
        cases[name]["convolutions_alone_seconds"] = alone.values
        cases[name]["unavoidable_flop_per_image"] = result.flop[name]
    return {
        "settings": asdict(result.setup) | {"rounds": result.rounds, "clock": result.setup.ratio_clock},
        "machine": environment(),
        "ratios": {name: value.summary() if value else empty for name, value in ratios(result).items()},
        "cases": cases,
        "growth": [asdict(curve) for curve in curves],
    }


OURS_COLOUR, REFERENCE_COLOUR, LIMIT_COLOUR = "#1b7837", "#b3b3b3", "#d95f02"


def chart(result: Result, path: Path) -> None:
    """Images a second and peak memory, a bar a case, with the rate that the convolutions alone would allow."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(case.group for case in result.cases.values()))
    members = [[name for name, case in result.cases.items() if case.group == group] for group in groups]
    figure = Figure(figsize=(11, 1.4 + 0.36 * len(result.cases)), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False, height_ratios=[len(names) for names in members])
    for (speed, space), names, group in zip(axes, members, groups, strict=True):
        places = range(len(names), 0, -1)
        ours = [result.cases[name].kind == "ours" for name in names]
        rates = [result.images_per_second(name) for name in names]
        limits = [(p, r / result.share(n)) for p, r, n in zip(places, rates, names, strict=True) if n in result.limit]
        bars(speed, places, rates, ours, most=max([*rates, *(rate for _, rate in limits)]))
        bars(space, places, [result.memory[name] / 2**20 for name in names], ours)
        for place, rate in limits:
            speed.plot([rate, rate], [place - 0.36, place + 0.36], color=LIMIT_COLOUR, linewidth=2.5)
        speed.set_yticks(list(places), names)
        speed.set_title(group, loc="left", fontsize=10)
        space.set_yticks([])
    axes[-1][0].set_xlabel("images a second (more is better)")
    axes[-1][1].set_xlabel("peak memory, MiB (less is better)")
    width = f" width {result.setup.width}" if result.setup.width else ""
    title = "green is rattle, grey the plain reference, orange the convolutions alone"
    figure.suptitle(f"{result.setup.model}{width}, batch {result.setup.batch}: {title}", fontsize=10)
    save(figure, path)


def bars(axis: Any, places: Sequence[int], values: Sequence[float], ours: Sequence[bool], most: float = 0) -> None:
    drawn = axis.barh(places, values, color=[OURS_COLOUR if own else REFERENCE_COLOUR for own in ours], height=0.72)
    labels = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]
    axis.bar_label(drawn, labels, padding=5, fontsize=8, color="#222222")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set(ylim=(0.4, len(values) + 0.6), xlim=(0, 1.12 * max(most, *values)))


def growth_chart(curves: Sequence[Curve], path: Path) -> None:
    """Time and peak memory against each of batch, K, classes and width, with the fitted exponents."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axis, curve in zip(figure.subplots(1, len(curves)), curves, strict=True):
        time, memory = np.divide(curve.seconds, curve.seconds[0]), np.divide(curve.bytes, curve.bytes[0])
        axis.plot(curve.values, time, "o-", color=OURS_COLOUR, label=f"time: exponent {curve.time_exponent:.2f}")
        axis.plot(curve.values, memory, "s--", color="#2166ac", label=f"memory: exponent {curve.memory_exponent:.2f}")
        axis.set(xscale="log", yscale="log", xlabel=curve.title, ylim=(0.9, 1.15 * max(2, *time, *memory)))
        axis.yaxis.set_major_locator(LogLocator(base=2, numticks=12))
        axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axis.minorticks_off()
        axis.set_xticks(curve.values, [str(v) for v in curve.values])
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("relative to the first point")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
