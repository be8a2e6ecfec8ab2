"""A frontier on the page: its folder stands for the runs in it, and frontier.json for a section. No torch."""

from collections.abc import Sequence
from pathlib import Path

from rattle.errors import RattleError
from rattle.report import figures
from rattle.report.naming import title_of
from rattle.runs.io import Plain, read_json
from rattle.stats import Interval

FILE = "frontier.json"


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


def read_frontiers(folders: Sequence[Path | str]) -> list[Plain]:
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


def section_of(plain: Plain) -> Plain:
    """What the page shows of one frontier: a figure for each attack, comparisons as rows of text, notes."""
    curves = plain["curves"]
    measured = curves[0]["points"][0]["attacks"]
    panels = []
    for attack, found in measured.items():
        panels.append({"attack": attack, "n": int(found["n"]), "figure": figures.frontier_figure(curves, attack)})
    rows, notes = [], [str(note) for note in plain["notes"]]
    for gap in plain["comparisons"]:
        if "refused" in gap:
            notes.append(str(gap["refused"]))
            continue
        points = f"{100 * gap['mean']:+.1f} {Interval(*gap['interval']).percent('+.1f')}"
        compared = "robust" if gap["equal"] == "clean" else "clean"
        between = f"{gap['equal']} {100 * gap['low']:.1f} to {100 * gap['high']:.1f} %"
        pair = f"{gap['method']} less {gap['baseline']}"
        rows.append([pair, f"{compared}, {title_of(gap['attack'])}", between, points, str(gap["verdict"])])
    return {
        "panels": panels,
        "setting": str(curves[0]["setting"]),
        "threat": str(plain["threat"]),
        "seeds": len(next(iter(measured.values()))["robust"]),
        "rows": rows,
        "notes": notes,
    }
