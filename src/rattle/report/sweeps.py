"""Runs that are a sweep: what they reached on held-out images against the setting in which they differ. No torch."""

from dataclasses import dataclass

from rattle.report.grid import best_epoch
from rattle.report.naming import settings_text
from rattle.report.run_data import Runs, finite

FEWEST_VALUES = 3  # of a setting that is drawn as an axis
MOST_SETTINGS = 2  # that a plot shows: one along its axis, one by colour
Reached = list[tuple[float, float]]  # (clean, robust) of each seed, at its best checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Accuracy against one setting."""

    setting: str  # its dotted name
    series: dict[str, dict[float, Reached]]  # method and second setting, where these differ -> value of the setting


def find_sweep(runs: Runs) -> Sweep | None:
    """The sweep that runs trained here are: runs of a method differ in one setting with three numbers or more, and in
    at most one other besides the seed. None if they are not, or none was evaluated on held-out images."""
    numbers: dict[str, set[float | None]] = {}
    for run in runs:
        for name, value in run.settings.items():
            numbers.setdefault(name, set()).add(finite(value))
    setting = max(numbers, key=lambda name: len(numbers[name] - {None}), default="")
    if len(numbers) > MOST_SETTINGS or len(numbers.get(setting, set()) - {None}) < FEWEST_VALUES:
        return None
    several = len({run.method for run in runs}) > 1
    series: dict[str, dict[float, Reached]] = {}
    for run in runs:
        x, reached = finite(run.settings.get(setting)), best_epoch(run.metrics)
        if x is None or reached is None:
            continue
        other = settings_text({name: value for name, value in run.settings.items() if name != setting})
        method = run.method if several else ""
        points = series.setdefault(", ".join(filter(None, (method, other))), {})
        points.setdefault(x, []).append(reached)
    return Sweep(setting=setting, series=series) if series else None
