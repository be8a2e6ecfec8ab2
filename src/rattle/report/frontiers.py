"""A frontier on the page: its folder stands for the runs in it, and frontier.json for a section. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rattle.errors import RattleError
from rattle.recipes.schema import epsilon_text
from rattle.report.naming import title_of
from rattle.report.tables import Accuracy
from rattle.runs.io import Plain, read_json

FILE = "frontier.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A method under one attack."""

    method: str
    settings: list[str]  # of each point
    clean: list[float]  # %, mean over seeds
    robust: list[Accuracy]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierSection:
    """What the page shows of one frontier."""

    panels: dict[str, list[Series]]  # attack -> methods
    setting: str
    threat: str
    n: dict[str, int]  # images of each attack
    seeds: int
    rows: list[list[str]]  # method less baseline, attack, points with interval, verdict, range of clean accuracy
    notes: list[str]


def with_runs(folders: Sequence[Path | str]) -> list[Path | str]:
    """The folders, with its runs instead of a frontier's."""
    found: list[Path | str] = []
    for folder in folders:
        if not (Path(folder) / FILE).is_file():
            found.append(folder)
            continue
        recipes = [*Path(folder).glob("*/recipe.yaml"), *Path(folder).glob("*/*/recipe.yaml")]
        if not recipes:
            raise RattleError(f"{folder} has a {FILE} and no runs: give the folder that `rattle frontier` wrote")
        found += sorted(path.parent for path in recipes)
    return found


def read_frontiers(folders: Sequence[Path | str]) -> list[FrontierSection]:
    """A section for each of the folders that is a frontier's."""
    sections = []
    for folder in folders:
        notes: list[str] = []
        plain = read_json(Path(folder) / FILE, notes)
        try:
            if notes:
                raise ValueError(notes[0])
            if plain is not None:
                sections.append(section_of(plain))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as reason:
            raise RattleError(f"{Path(folder) / FILE} is damaged: run `rattle frontier` again to write it") from reason
    return sections


def section_of(plain: Plain) -> FrontierSection:
    panels: dict[str, list[Series]] = {}
    n: dict[str, int] = {}
    for curve in plain["curves"]:
        texts = []
        for point in curve["points"]:
            value = float(point["value"])
            texts.append(epsilon_text(value) if curve["setting"].endswith("epsilon") else f"{value:g}")
        for attack in curve["points"][0]["attacks"]:
            found = [point["attacks"][attack] for point in curve["points"]]
            robust = []
            for each in found:
                low, high = each["interval"]
                robust.append(Accuracy(value=100 * fmean(each["robust"]), low=100 * low, high=100 * high))
            clean = [100 * fmean(each["clean"]) for each in found]
            n[attack] = int(found[0]["n"])
            panels.setdefault(attack, []).append(
                Series(method=str(curve["method"]), settings=texts, clean=clean, robust=robust)
            )
    first = plain["curves"][0]
    seeds = len(next(iter(first["points"][0]["attacks"].values()))["robust"])
    rows, notes = [], [str(note) for note in plain["notes"]]
    for gap in plain["comparisons"]:
        if "refused" in gap:
            notes.append(str(gap["refused"]))
            continue
        low, high = gap["interval"]
        points = f"{100 * gap['mean']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        compared = "robust" if gap["equal"] == "clean" else "clean"
        between = f"{gap['equal']} {100 * gap['low']:.1f} to {100 * gap['high']:.1f} %"
        pair = f"{gap['method']} less {gap['baseline']}"
        rows.append([pair, f"{compared}, {title_of(gap['attack'])}", between, points, str(gap["verdict"])])
    return FrontierSection(
        panels=panels,
        setting=str(first["setting"]),
        threat=str(plain["threat"]),
        n=n,
        seeds=seeds,
        rows=rows,
        notes=notes,
    )
