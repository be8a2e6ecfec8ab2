"""Runs that are a sweep: what they reached on held-out images against the setting in which they differ. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from rattle.recipes.schema import flatten
from rattle.report.grid import best_epoch
from rattle.report.naming import settings_text, varied
from rattle.report.run_data import RunData, finite

FEWEST_VALUES = 3  # of a setting that is drawn as an axis
MOST_SETTINGS = 2  # that a plot shows: one along its axis, one by colour
Reached = list[tuple[float, float]]  # (clean, robust) of each seed, at its best checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Accuracy against one setting."""

    setting: str  # its dotted name
    series: dict[str, dict[float, Reached]]  # method and second setting, where these differ -> value of the setting


def find_sweep(runs: Sequence[RunData]) -> Sweep | None:
    """The sweep that runs trained here are: they differ in one setting with three numbers or more, and in at most one
    other besides method and seed. None if they are not, or none was evaluated on held-out images."""
    trained = [run for run in runs if not run.external]
    recipes: dict[str, list[dict[str, object]]] = {}
    for run in trained:
        recipes.setdefault(run.method, []).append(run.recipe)
    names = list(dict.fromkeys(name for of_method in recipes.values() for name in varied(of_method)))
    numbers = {name: {value_of(run, name) for run in trained} - {None} for name in names}
    setting = max(names, key=lambda name: len(numbers[name]), default="")
    if len(names) > MOST_SETTINGS or len(numbers.get(setting, ())) < FEWEST_VALUES:
        return None
    others = [name for name in names if name != setting]
    series: dict[str, dict[float, Reached]] = {}
    for run in trained:
        x, reached = value_of(run, setting), best_epoch(run.metrics)
        if x is not None and reached is not None:
            parts = run.method if len(recipes) > 1 else "", settings_text(run.recipe, others)
            points = series.setdefault(", ".join(filter(None, parts)), {})
            points.setdefault(x, []).append(reached)
    return Sweep(setting=setting, series=series) if series else None


def value_of(run: RunData, setting: str) -> float | None:
    return finite(flatten(run.recipe).get(setting))
