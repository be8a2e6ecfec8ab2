"""A benchmark as a table, as JSON and as a bar chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rattle.bench.cases import AUTHORS, COMPONENTS, PGD20, PUBLISHED, TEXTBOOK
from rattle.bench.curves import Curve
from rattle.bench.measure import Ratio, Timing, ratio
from rattle.bench.run import Result
from rattle.runs.environment import environment

ZEROTH, SECOND = "TRADES", "TRADES 1st+2nd"
RATIOS = {  # name -> what it is, and the target for PreAct-ResNet-18 of full width
    "second_over_zeroth_time": ("1st+2nd over TRADES, time", "at most 1.03"),
    "second_over_zeroth_memory": ("1st+2nd over TRADES, memory", "at most 1.03"),
    "authors_over_second_time": ("the authors' algorithm over 1st+2nd, time", "at least 2.3"),
    "authors_over_second_memory": ("the authors' algorithm over 1st+2nd, memory", "at least 2"),
    "published_trades_over_trades_time": ("TRADES as published over TRADES, time", "at least 1.5"),
    "textbook_pgd20_over_pgd20_time": ("textbook PGD-20 over PGD-20, time", "at least 1.5"),
    "reference_over_autoattack_time": ("pyautoattack over our components, time", ""),
    "conv_limit_fraction": ("share of a 1st+2nd step that is convolutions at their best", "at least 0.75"),
}


def ratios(result: Result) -> dict[str, Ratio | None]:
    """Every ratio by its name; None where a side of it was not measured."""
    seconds, memory = {name: t.on(result.clock) for name, t in result.seconds.items()}, result.memory

    def time_of(above: str, below: str) -> Ratio | None:
        return ratio(seconds[above], seconds[below]) if above in seconds and below in seconds else None

    def memory_of(above: str, below: str) -> Ratio | None:
        if above not in memory or below not in memory:
            return None
        value = memory[above] / memory[below]  # allocations do not vary from round to round
        return Ratio(median=value, low=value, high=value)

    ours, theirs = (total(seconds, [f"{name}{end}" for name in COMPONENTS]) for end in ("", ", pyautoattack"))
    return {
        "second_over_zeroth_time": time_of(SECOND, ZEROTH),
        "second_over_zeroth_memory": memory_of(SECOND, ZEROTH),
        "authors_over_second_time": time_of(AUTHORS, SECOND),
        "authors_over_second_memory": memory_of(AUTHORS, SECOND),
        "published_trades_over_trades_time": time_of(PUBLISHED, ZEROTH),
        "textbook_pgd20_over_pgd20_time": time_of(TEXTBOOK, PGD20),
        "reference_over_autoattack_time": ratio(theirs, ours) if ours and theirs else None,
        "conv_limit_fraction": result.share(SECOND) if SECOND in result.limit else None,
    }


def total(seconds: Mapping[str, Timing], names: Sequence[str]) -> Timing | None:
    """The sum of some cases, round by round."""
    if any(name not in seconds for name in names):
        return None
    return Timing(tuple(map(sum, zip(*(seconds[name].seconds for name in names), strict=True))))


def rows(result: Result) -> list[list[str]]:
    """The table on the terminal: a case a line."""
    found = []
    for name, case in result.cases.items():
        timing, memory = result.seconds[name], result.memory.get(name)
        share = f"{result.share(name).median:.2f}" if name in result.limit else ""
        found.append(
            [
                name if case.kind == "ours" else f"  {name}",
                f"{timing.median:.3f} [{timing.low:.3f}, {timing.high:.3f}]",
                f"{result.setup.batch / timing.median:.1f}",
                f"{memory / 2**20:.1f}" if memory else "",
                f"{result.flop[name] / 1e9:.1f}" if name in result.flop else "",
                share,
            ]
        )
    return found


def ratio_rows(result: Result) -> list[list[str]]:
    found = []
    for name, value in ratios(result).items():
        what, target = RATIOS[name]
        said = f"{value.median:.3f} [{value.low:.3f}, {value.high:.3f}]" if value else "not measured"
        found.append([what, said, target])
    return found


def to_plain(result: Result, curves: Sequence[Curve] = ()) -> dict[str, Any]:
    """What --json writes."""
    empty = {"median": None, "low": None, "high": None}
    cases = {}
    for name, case in result.cases.items():
        timing = result.seconds[name]
        cases[name] = {
            "group": case.group,
            "kind": case.kind,
            "seconds": {"median": timing.median, "low": timing.low, "high": timing.high},
            "images_per_second": result.setup.batch / timing.median,
            "peak_bytes": result.memory.get(name),
            "rounds": list(timing.seconds),
            "processor_rounds": list(timing.processor),
        }
        if name in result.limit:
            cases[name] |= {
                "convolutions_alone_seconds": list(result.limit[name].seconds),
                "unavoidable_flop_per_image": result.flop[name],
            }
    return {
        "settings": asdict(result.setup) | {"rounds": result.rounds, "clock": result.clock},
        "machine": environment(),
        "ratios": {name: asdict(value) if value else empty for name, value in ratios(result).items()},
        "cases": cases,
        "growth": [asdict(curve) for curve in curves],
    }


INK, OURS, TWIN, LIMIT = "#222222", "#1b7837", "#b3b3b3", "#d95f02"


def chart(result: Result, path: Path) -> None:
    """Images a second and peak memory, a bar a case, ours and the plain twins; a mark where the convolutions end."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(case.group for case in result.cases.values()))
    members = [[name for name, case in result.cases.items() if case.group == group] for group in groups]
    figure = Figure(figsize=(11, 1.4 + 0.36 * len(result.cases)), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False, height_ratios=[len(names) for names in members])
    for (speed, space), names, group in zip(axes, members, groups, strict=True):
        places = range(len(names), 0, -1)
        colours = [OURS if result.cases[name].kind == "ours" else TWIN for name in names]
        rates = [result.setup.batch / result.seconds[name].median for name in names]
        ends = [
            rate / result.share(name).median for rate, name in zip(rates, names, strict=True) if name in result.limit
        ]
        bars(speed, places, rates, colours, most=max(rates + ends))
        bars(space, places, [result.memory[name] / 2**20 for name in names], colours)
        for place, end in zip(places, ends, strict=False):
            speed.plot([end, end], [place - 0.36, place + 0.36], color=LIMIT, linewidth=2.5)
        speed.set_yticks(list(places), names)
        speed.set_title(group, loc="left", fontsize=10)
        space.set_yticks([])
    axes[-1][0].set_xlabel("images a second (more is better)")
    axes[-1][1].set_xlabel("peak memory, MiB (less is better)")
    width = f" width {result.setup.width}" if result.setup.width else ""
    title = "green is rattle, grey the plain twin, orange the convolutions alone"
    figure.suptitle(f"{result.setup.model}{width}, batch {result.setup.batch}: {title}", fontsize=10)
    save(figure, path)


def bars(axis: Any, places: Sequence[int], values: Sequence[float], colours: Sequence[str], most: float = 0) -> None:
    drawn = axis.barh(places, values, color=colours, height=0.72)
    labels = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]
    axis.bar_label(drawn, labels, padding=5, fontsize=8, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set(ylim=(0.4, len(values) + 0.6), xlim=(0, 1.12 * max(most, *values)))


def growth_chart(curves: Sequence[Curve], path: Path) -> None:
    """Time and peak memory against each of batch, K, classes and width, with the fitted exponents."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axis, curve in zip(figure.subplots(1, len(curves)), curves, strict=True):
        for values, exponent, mark, colour, what in (
            (curve.seconds, curve.time_exponent, "o-", OURS, "time"),
            (curve.bytes, curve.memory_exponent, "s--", "#2166ac", "memory"),
        ):
            relative = [value / values[0] for value in values]
            axis.plot(curve.values, relative, mark, color=colour, label=f"{what}: exponent {exponent:.2f}")
        axis.set(xscale="log", yscale="log", xlabel=curve.title)
        highest = max(max(costs) / costs[0] for costs in (curve.seconds, curve.bytes))
        axis.set_ylim(0.9, 1.15 * max(highest, 2))
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
