"""Frontiers: robust against clean accuracy over a method's trade-off setting, and methods at equal clean accuracy.

At one setting of each, two methods differ in clean and in robust accuracy, and which is better cannot be said. Here
the robust accuracy of a method is compared with that of the baseline's curve at the same clean accuracy, inside the
range that both cover, with intervals over seeds and images. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rattle.analysis.equal_accuracy import compare_at_equal
from rattle.errors import RattleError, unknown
from rattle.evaluation.samples import Sample
from rattle.recipes.schema import trade_off_text
from rattle.runs.arrays import Array
from rattle.runs.io import Plain, write_json
from rattle.stats import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EQUAL = 0.005  # an interval inside +- this is called equal
MISLED = ("pgd", "fgsm")  # attacks on the cross-entropy, which soft labels mislead


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of the setting: a run for each seed."""

    value: float
    runs: tuple[str, ...] = ()  # their folders
    clean: Mapping[str, Sample]  # attack -> what its images were before it
    robust: Mapping[str, Sample]  # attack -> after it
    held_out: Array | None = None  # clean and robust accuracy on held-out images, [seeds, 2]

    def accuracy(self, attack: str) -> tuple[float, float]:
        """Clean and robust, the mean over seeds."""
        return self.clean[attack].summary.mean, self.robust[attack].summary.mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A method over its trade-off setting."""

    method: str
    setting: str  # its dotted name in a recipe
    points: tuple[Point, ...]

    def text(self, point: Point) -> str:
        return trade_off_text(self.setting, point.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One accuracy of a method less the baseline's where the other accuracy is equal, in fractions of 1."""

    method: str
    baseline: str
    attack: str
    equal: str  # "clean": robust accuracies are compared; "robust": clean accuracies
    low: float  # the range that both curves cover
    high: float
    mean: float  # over that range
    interval: Interval
    at: tuple[tuple[float, float, Interval], ...]  # points of the method inside it: setting, difference, interval
    seeds: int
    images: int

    @property
    def verdict(self) -> str:
        """above, below, equal or not distinguishable."""
        if self.interval.low > 0:
            return "above"
        if self.interval.high < 0:
            return "below"
        if self.interval.low >= -EQUAL and self.interval.high <= EQUAL:
            return "equal"
        return "not distinguishable"

    def to_plain(self) -> Plain:
        at = [{"value": v, "difference": d, "interval": list(i)} for v, d, i in self.at]
        return asdict(self) | {"verdict": self.verdict, "interval": list(self.interval), "at": at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The point that meets a condition on held-out images, and what it gives on test images."""

    method: str
    setting: str
    value: str
    run: str  # the seed that is most robust on held-out images
    held_out: tuple[float, float]  # clean and robust accuracy there, mean over seeds
    test: dict[str, str]  # clean and attacks: accuracy and its 95 % interval, %

    def __str__(self) -> str:
        clean, robust = self.held_out
        test = ", ".join(f"{name} {accuracy}" for name, accuracy in self.test.items())
        return (
            f"{self.method} at {self.setting} {self.value}: {self.run}\n"
            f"held-out images: clean {100 * clean:.1f} %, robust {100 * robust:.1f} %; test images, %: {test}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Methods over their trade-off settings, attacked on the same images."""

    curves: tuple[Curve, ...]
    threat: str = ""  # what they were attacked by
    notes: tuple[str, ...] = ()

    @property
    def attacks(self) -> list[str]:
        return list(self.curves[0].points[0].robust)

    @property
    def methods(self) -> list[str]:
        return [curve.method for curve in self.curves]

    def compare(self, baseline: str | None = None, *, equal: str = "clean") -> list[Gap]:
        """Every other method against the baseline, the first when not given, by every attack.

        equal: the accuracy that is held equal, "clean" or "robust". A pair whose curves cover no common range is
        refused.
        """
        if equal not in ("clean", "robust"):
            raise RattleError(f"equal must be clean or robust, got {equal!r}")
        curves = {curve.method: curve for curve in self.curves}
        if baseline not in (None, *curves):
            raise unknown("method of this frontier", baseline, curves)
        base = curves[baseline or self.methods[0]]
        gaps = []
        for curve in self.curves:
            if curve is not base:
                gaps += [compare_curves(curve, base, attack, equal) for attack in self.attacks]
        return gaps

    def choose(self, *, clean_at_least: float | None = None, robust_at_least: float | None = None) -> Choice:
        """The point best in one accuracy of those with at least this much of the other, in %, on held-out images."""
        if (clean_at_least is None) == (robust_at_least is None):
            raise RattleError("choose by clean_at_least or by robust_at_least, one of them")
        bound = 0 if robust_at_least is None else 1
        least = (clean_at_least if bound == 0 else robust_at_least) or 0.0
        known: list[tuple[Array, Curve, Point]] = []
        for curve in self.curves:
            for point in curve.points:
                if point.held_out is None:
                    raise RattleError("the runs held out no images to choose by: set data.val_size")
                known.append((point.held_out, curve, point))
        found = [each for each in known if 100 * each[0].mean(0)[bound] >= least]
        if not found:
            kind, most = ("clean", "robust")[bound], max(held_out.mean(0)[bound] for held_out, _, _ in known)
            raise RattleError(
                f"no point has {least:g} % {kind} accuracy on held-out images: the most is {100 * most:.1f}"
            )
        held_out, curve, point = max(found, key=lambda each: each[0].mean(0)[1 - bound])
        test = {"clean": percent_text(point.clean[self.attacks[0]])}
        test |= {name: percent_text(sample) for name, sample in point.robust.items()}
        clean, robust = held_out.mean(0).tolist()
        return Choice(
            method=curve.method,
            setting=curve.setting,
            value=curve.text(point),
            run=point.runs[int(held_out[:, 1].argmax())] if point.runs else "",
            held_out=(clean, robust),
            test=test,
        )

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows of a table: accuracies in % with 95 % intervals."""
        rows = []
        for curve in self.curves:
            for point in curve.points:
                clean = point.clean[self.attacks[0]]
                names = [curve.method, f"{curve.setting} {curve.text(point)}", str(len(clean.seeds)), str(clean.n)]
                rows.append([*names, percent_text(clean), *map(percent_text, point.robust.values())])
        return ["method", "setting", "seeds", "n", "clean", *self.attacks], rows

    def summary(self, baseline: str | None = None) -> str:
        """A sentence for each method against the baseline."""
        by_method = groupby(self.compare(baseline), key=lambda gap: gap.method)
        return "\n".join(sentence(list(gaps)) for _, gaps in by_method)

    def plot(self) -> Figure:
        """A panel for each attack: clean accuracy on x, robust accuracy on y, a curve with its band for each method."""
        from rattle.analysis import plots

        first = self.curves[0].points[0].clean
        titles = [f"{name}, {self.threat}, n {first[name].n}, {first[name].seeds_text}" for name in self.attacks]
        figure, panels = plots.trade_off_panels(titles)
        for panel, attack in zip(panels, self.attacks, strict=True):
            for number, curve in enumerate(self.curves):
                color = plots.LINES[number % len(plots.LINES)]
                rows = []
                for point in sorted(curve.points, key=lambda point: point.accuracy(attack)[0]):
                    interval = interval_of(point.robust[attack])
                    row = 100 * np.array([*point.accuracy(attack), interval.low, interval.high])
                    rows.append(row)
                    style: Any = {"textcoords": "offset points", "fontsize": 7, "color": color}
                    panel.annotate(curve.text(point), row[:2], (4, 5), **style)
                x, y, low, high = np.array(rows).T
                panel.plot(x, y, "o-", color=color, markersize=4, label=curve.method)
                panel.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
        panels[0].legend(frameon=False, fontsize=8)
        return figure

    def to_plain(self, baseline: str | None = None) -> Plain:
        """What frontier.json holds: accuracies of every run, and the comparisons."""
        curves = []
        for curve in self.curves:
            points = []
            for point in curve.points:
                attacks = {}
                for name in self.attacks:
                    interval = interval_of(point.robust[name])
                    attacks[name] = {
                        "n": point.robust[name].n,
                        "clean": point.clean[name].accuracies,
                        "robust": point.robust[name].accuracies,
                        "interval": list(interval),
                    }
                held_out = None if point.held_out is None else point.held_out.tolist()
                points.append({"value": point.value, "runs": point.runs, "attacks": attacks, "held_out": held_out})
            curves.append({"method": curve.method, "setting": curve.setting, "points": points})
        comparisons = []
        for equal in ("clean", "robust"):
            try:
                comparisons += [gap.to_plain() for gap in self.compare(baseline, equal=equal)]
            except RattleError as reason:
                comparisons.append({"equal": equal, "refused": str(reason)})
        return {"threat": self.threat, "curves": curves, "notes": self.notes, "comparisons": comparisons}

    def save(self, folder: Path | str, baseline: str | None = None) -> None:
        """Write frontier.json, frontier.png and frontier.svg."""
        from rattle.analysis.plots import save_figure

        folder = Path(folder)
        write_json(folder / "frontier.json", self.to_plain(baseline), indent=1)
        save_figure(self.plot(), folder / "frontier")


def percent_text(sample: Sample) -> str:
    return interval_of(sample).around(sample.summary.mean)


def interval_of(sample: Sample) -> Interval:
    """95 % of the mean, inside [0, 1]."""
    return Interval(max(sample.interval.low, 0.0), min(sample.interval.high, 1.0))


def sentence(gaps: Sequence[Gap]) -> str:
    """Which of two frontiers is above, by which attack; the strongest attack, the lowest on average, decides."""
    parts = []
    for gap in gaps:
        points = f"{100 * gap.mean:+.1f} {gap.interval.percent('+.1f')} points"
        parts.append(f"{gap.verdict} under {gap.attack} ({points})")
    first = gaps[0]
    text = f"at equal clean accuracy the frontier of {first.method} beside {first.baseline} is {', '.join(parts)}"
    strongest = next((gap for gap in gaps if gap.attack == "autoattack"), None)
    for gap in gaps:
        if strongest and gap.attack.startswith(MISLED) and gap.verdict == "above" and strongest.verdict != "above":
            text += f"; AutoAttack does not confirm it: {gap.attack} is misled"
            break
    if first.seeds == 1:
        text += "; one seed compares networks, not methods"
    images = " and ".join(dict.fromkeys(str(gap.images) for gap in gaps))
    return text + f" (n {images}, seeds {first.seeds}, clean {100 * first.low:.1f} to {100 * first.high:.1f} %)"


def compare_curves(curve: Curve, base: Curve, attack: str, equal: str = "clean") -> Gap:
    """One curve against another where the clean, or the robust, accuracy is equal."""
    for one in (curve, base):
        if len(one.points) < 2:
            raise RattleError(f"{one.method} has one point: a frontier needs two or more values of {one.setting}")
    ours, theirs = stacked(curve, attack, equal), stacked(base, attack, equal)
    _, seeds, images = ours[0].shape
    if theirs[0].shape[1:] != (seeds, images):
        raise RattleError(f"{curve.method} and {base.method} were not attacked on the same images with the same seeds")
    low, high, gaps = compare_at_equal(*ours, *theirs)
    *each, (mean, interval) = gaps
    if math.isnan(mean):
        ranges = []
        for one, (x, _) in ((curve, ours), (base, theirs)):
            means = 100 * x.mean((1, 2))
            ranges.append(f"{one.method} {means.min():.1f} to {means.max():.1f} %")
        raise RattleError(
            f"the frontiers cover no common range of {equal} accuracy under {attack} ({'; '.join(ranges)}): give "
            "other values of the setting"
        )
    at = []
    for point, gap in zip(curve.points, each, strict=True):
        if not math.isnan(gap[0]):
            at.append((point.value, *gap))
    return Gap(
        method=curve.method,
        baseline=base.method,
        attack=attack,
        equal=equal,
        low=low,
        high=high,
        mean=mean,
        interval=interval,
        at=tuple(at),
        seeds=seeds,
        images=images,
    )


def stacked(curve: Curve, attack: str, equal: str) -> tuple[Array, Array]:
    """The accuracy held equal and the one compared, flags as floats, [points, seeds, images]."""
    clean = np.array([point.clean[attack].flags for point in curve.points], float)
    robust = np.array([point.robust[attack].flags for point in curve.points], float)
    return (clean, robust) if equal == "clean" else (robust, clean)
