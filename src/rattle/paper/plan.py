"""Which runs a table of the paper needs at a scale: its rows, the baselines they are compared with, surrogates."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rattle.errors import RattleError
from rattle.paper import tables
from rattle.paper.rows import Overrides, Row, parts_of
from rattle.paper.scales import Scale
from rattle.recipes.catalog import method_pattern
from rattle.recipes.recipe import Recipe
from rattle.training import sweep
from rattle.training.sweep import Job

States = Mapping[tuple[str, int], str]  # (key, seed) -> new, unfinished, running, finished or diverged


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of the paper and our runs that reproduce it; keys name runs without their seed, "" says there are none."""

    row: Row
    recipe: Recipe | None  # None for results that the paper quotes
    key: str
    baseline: str  # key of the entry it is compared with
    surrogate: str  # key of the run that transfer attacks are made on


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows, and every run they need, each once."""

    number: int  # of the table
    scale: Scale
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    jobs: dict[tuple[str, int], Job]  # (key, seed) -> its run

    def states(self) -> States:
        """The state of every run. Reads checkpoints, so call it once."""
        return {key: "diverged" if job.run.divergence else job.state for key, job in self.jobs.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        extra = tables.SWA_COMPARISON.notes if self.number == 8 else ()
        return (self.scale.note, *(f"Published: {note}" for note in (*tables.table(self.number).notes, *extra)))


def rows_of(number: int) -> list[Row]:
    """The rows of a table, each after the 0th-order row it is compared with, also where the paper prints none."""
    rows = list(tables.table(number).rows)
    if number == 8:  # Section 5.3 sets SWA beside the method; we also train it on TRADES
        swa, second = tables.SWA_COMPARISON.rows
        rows += [swa, on_trades(second), second]
    found: list[Row] = []
    for row in map(trainable, rows):
        if row.baseline and row.baseline not in [other.recipe for other in found if not other.overrides]:
            found.append(unprinted(row.baseline, row))
        found.append(row)
    return found


def trainable(row: Row) -> Row:
    """The row; without its recipe where nothing of that name is registered."""
    known = row.recipe is None or re.fullmatch(method_pattern(), parts_of(row.recipe)[3])
    return row if known else replace(row, recipe=None)


def on_trades(like: Row) -> Row:
    """SWA alone, on TRADES: beside it the Taylor terms are compared with an average and nothing else."""
    cells = tuple(replace(cell, printed="-") for cell in like.cells)
    swa = {"recipe": tables.PREACT, "overrides": (("average", "SWA"),), "note": "not in the paper"}
    return replace(like, method="TRADES with SWA", cells=cells, **swa)


def unprinted(recipe: str, like: Row) -> Row:
    """A baseline that the table does not print; what other tables print of it is taken from there."""
    published = tables.published(recipe)
    printed = {cell.column: cell.printed for _, row in published for cell in row.cells}
    cells = tuple(replace(cell, printed=printed.get(cell.column, "-")) for cell in like.cells)
    numbers = ", ".join(str(number) for number, _ in published)
    note = f"not in this table; figures are those of Table {numbers}" if numbers else "not in the paper"
    return replace(like, method="TRADES (0th)", recipe=recipe, cells=cells, overrides=(), note=note)


def entries(number: int, scale: Scale) -> list[Entry]:
    """Rows with their recipes at a scale."""
    return [
        Entry(
            row=row,
            recipe=scale.recipe(row.recipe, row.overrides) if row.recipe else None,
            key=key_of(scale, row.recipe, row.overrides),
            baseline=key_of(scale, row.baseline),
            surrogate=key_of(scale, row.surrogate),
        )
        for row in rows_of(number)
    ]


def key_of(scale: Scale, name: str | None, overrides: Overrides = ()) -> str:
    """What runs of a recipe are called: its name at this scale, and the overrides that change it; "" without one."""
    if name is None:
        return ""
    plain = scale.recipe(name)
    changes = {change[0]: change[1] for change in overrides if scale.recipe(name, (change,)) != plain}
    return sweep.folder_name({"recipe": plain.name, **changes})


def plan(number: int, scale: Scale, seeds: tuple[int, ...], out: Path) -> Plan:
    """The runs of a table under OUT/SCALE; a folder that holds another run is refused."""
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise RattleError(f"--seeds are whole numbers from 0 on, none of them twice, got {' '.join(map(str, seeds))}")
    found = entries(number, scale)
    recipes = {entry.key: entry.recipe for entry in found if entry.recipe}
    recipes |= {entry.surrogate: scale.recipe(entry.row.surrogate) for entry in found if entry.row.surrogate}
    jobs = {
        (key, seed): Job(out / scale.name / f"{key},seed={seed}", replace(recipe, seed=seed))
        for key, recipe in recipes.items()
        for seed in seeds
    }
    try:
        sweep.check(list(jobs.values()))
    except RattleError as reason:
        if "--out" in str(reason):
            raise
        raise RattleError(f"{reason}: a folder of another version of rattle? choose another --out") from reason
    return Plan(number=number, scale=scale, entries=tuple(found), seeds=seeds, jobs=jobs)
