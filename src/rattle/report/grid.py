"""The grid of a sweep as a table: what each setting reached on the held-out images, over its seeds. No torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rattle.runs.io import read_jsonl
from rattle.runs.paths import Run, best_epoch
from rattle.stats import summarise

SEED = "seed"  # the axis that makes several runs of one setting


def grid_rows(points: Sequence[tuple[Mapping[str, str], Path]]) -> tuple[list[str], list[list[str]], Path] | None:
    """Columns, rows and a run of the first row: what each setting reached in % at the runs' best checkpoints, by robust
    accuracy, best first. Runs that were never evaluated are left out; None if that leaves none.
    """
    groups: dict[tuple[tuple[str, str], ...], list[tuple[float, float, Path]]] = {}
    for point, folder in points:
        reached = best_epoch(read_jsonl(Run(folder).metrics, []))
        if reached is not None:
            setting = tuple((name, value) for name, value in point.items() if name != SEED)
            groups.setdefault(setting, []).append((*reached, folder))
    if not groups:
        return None
    found = []
    for setting, runs in groups.items():
        clean, robust, folders = zip(*runs, strict=True)
        accuracies = [summarise(values).percent() for values in (clean, robust)]
        found.append((fmean(robust), [*dict(setting).values(), str(len(runs)), *accuracies], folders[0]))
    found.sort(key=lambda row: -row[0])
    columns = [*dict(next(iter(groups))), "seeds", "clean", "robust"]
    return columns, [cells for _, cells, _ in found], found[0][2]
