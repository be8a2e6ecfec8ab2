"""The grid of a sweep as a table: what each setting reached on the held-out images, over its seeds. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rattle.runs.io import read_jsonl
from rattle.runs.paths import Run, best_epoch
from rattle.stats import Summary, summarise

SEED = "seed"  # the axis that makes several runs of one setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One point of the grid without its seed, at each run's best checkpoint."""

    values: Mapping[str, str]  # of the settings that the grid varies
    folders: tuple[Path, ...]  # one for each seed
    clean: Summary  # accuracy on the held-out images
    robust: Summary  # under the recipe's validation attack


def grid_settings(points: Sequence[tuple[Mapping[str, str], Path]]) -> list[Setting]:
    """The settings of a grid by robust accuracy, best first; runs that were never evaluated are left out."""
    groups: dict[tuple[tuple[str, str], ...], list[tuple[Path, float, float]]] = {}
    for point, folder in points:
        reached = best_epoch(read_jsonl(Run(folder).metrics, []))
        if reached is not None:
            values = tuple((name, value) for name, value in point.items() if name != SEED)
            groups.setdefault(values, []).append((folder, *reached))
    settings = []
    for values, runs in groups.items():
        folders, clean, robust = zip(*runs, strict=True)
        reached = {"clean": summarise(clean), "robust": summarise(robust)}
        settings.append(Setting(values=dict(values), folders=folders, **reached))
    return sorted(settings, key=lambda setting: -setting.robust.mean)


def grid_rows(settings: Sequence[Setting]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: the settings, the number of seeds, and both accuracies in percent."""
    rows = []
    for each in settings:
        rows.append([*each.values.values(), str(each.robust.n), in_percent(each.clean), in_percent(each.robust)])
    return [*settings[0].values, "seeds", "clean", "robust"], rows


def in_percent(summary: Summary) -> str:
    deviation = f" ± {100 * summary.deviation:.1f}" if summary.n > 1 else ""
    return f"{100 * summary.mean:.1f}{deviation}"
