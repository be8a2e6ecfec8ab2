"""Runs that are a sweep: what they reached against the setting in which they differ, mean over seeds. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from rattle.evaluation.samples import Sample
from rattle.recipes.schema import flatten
from rattle.report.compare import group_by_method, robust_attack, samples_of
from rattle.report.grid import best_epoch
from rattle.report.naming import settings_text, varied
from rattle.report.run_data import RunData, finite
from rattle.report.tables import Accuracy, accuracy
from rattle.stats import seeds_interval, summarise

FEWEST_VALUES = 3  # of a setting that is drawn as an axis
MOST_SETTINGS = 2  # that a plot shows: one along its axis, one by colour


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPoint:
    """Runs that differ in their seed alone, at one value of the setting."""

    x: float
    clean: Accuracy
    robust: Accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that differ in the setting alone, by its value."""

    name: str  # method and second setting, where these differ
    index: int  # the run whose colour it has
    points: tuple[SweptPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Accuracy against one setting."""

    setting: str  # its dotted name
    series: tuple[Series, ...]
    attack: str | None  # of the robust accuracy, on test images; None: the validation attack, on held-out images
    several: bool  # whether there are points of several seeds


def find_sweep(runs: Sequence[RunData]) -> Sweep | None:
    """The sweep that runs trained here are: they differ in one setting with three numbers or more, and in at most one
    other besides method and seed. None if they are not, or nothing was measured."""
    groups = list(group_by_method([run for run in runs if not run.external]).values())
    firsts = [members[0] for members in groups]
    names = settings_of(firsts)
    setting = max(names, key=lambda name: len(numbers_of(firsts, name)), default=None)
    if setting is None or len(numbers_of(firsts, setting)) < FEWEST_VALUES or len(names) > MOST_SETTINGS:
        return None
    attack = robust_attack([run for members in groups for run in members])
    others = [name for name in names if name != setting]
    several_methods = len({run.method for run in firsts}) > 1
    points: dict[str, list[SweptPoint]] = {}
    indices: dict[str, int] = {}
    for members, first in zip(groups, firsts, strict=True):
        found, x = reached(members, attack), value_of(first, setting)
        if found and x is not None:
            parts = (first.method if several_methods else "", settings_text(first.recipe, others))
            name = ", ".join(filter(None, parts))
            point = SweptPoint(x=x, clean=found[0], robust=found[1])
            points.setdefault(name, []).append(point)
            indices.setdefault(name, first.index)
    if not points:
        return None
    series = []
    for name, of_name in points.items():
        of_name.sort(key=lambda point: point.x)
        series.append(Series(name=name, index=indices[name], points=tuple(of_name)))
    several = any(len(members) > 1 for members in groups)
    return Sweep(setting=setting, series=tuple(series), attack=attack, several=several)


def numbers_of(runs: Sequence[RunData], setting: str) -> set[float]:
    """The numbers that a setting has among the runs."""
    return {value for run in runs if (value := value_of(run, setting)) is not None}


def settings_of(runs: Sequence[RunData]) -> list[str]:
    """The settings in which runs of one method differ, of all methods."""
    recipes = {run.method: [each.recipe for each in runs if each.method == run.method] for run in runs}
    return list(dict.fromkeys(name for each in recipes.values() for name in varied(each)))


def value_of(run: RunData, setting: str) -> float | None:
    return finite(flatten(run.recipe).get(setting))


def reached(members: Sequence[RunData], attack: str | None) -> tuple[Accuracy, Accuracy] | None:
    """(clean, robust) of runs that differ in their seed alone: on test images, without an attack on held-out ones."""
    if attack is not None:
        samples = samples_of(members)
        return (mean_of(samples["clean"]), mean_of(samples[attack])) if attack in samples else None
    best = [found for run in members if (found := best_epoch(run.metrics))]
    means = [100 * summarise([found[i] for found in best]).mean for i in (0, 1)] if best else []
    return (Accuracy(*means[:1] * 3), Accuracy(*means[1:] * 3)) if means else None


def mean_of(sample: Sample) -> Accuracy:
    """Mean in % with its 95 % interval: Student's over seeds, of one seed Wilson's over images."""
    if len(sample.flags) == 1:
        return accuracy(sample.flags[0])
    interval, mean = seeds_interval(sample.flags), summarise(sample.accuracies).mean
    return Accuracy(100 * mean, 100 * max(0.0, interval.low), 100 * min(1.0, interval.high))
