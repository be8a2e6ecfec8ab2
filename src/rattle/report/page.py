"""One self-contained HTML page of runs: template, style, script, plotly and every figure in a single file.

Nothing is fetched: a content security policy forbids it, and lets only the page's own scripts run, by their hashes.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from rattle import __version__
from rattle.evaluation.unions import split_name
from rattle.report import compare, figures, sections
from rattle.report.compare import PublishedRows
from rattle.report.frontiers import read_frontiers, with_runs
from rattle.report.naming import duration, number, p_value, significant, title_of
from rattle.report.run_data import RunData, Runs, baseline_first, load_runs, results_folder
from rattle.report.significance import Samples
from rattle.report.sweeps import find_sweep
from rattle.report.tables import TABLE_NOTE, accuracy, sorted_attacks
from rattle.report.tables import compare as compare_rows
from rattle.runs.io import Plain, write_atomically
from rattle.runs.paths import Run

FILTERS = {
    "number": number,
    "significant": significant,
    "p_value": p_value,
    "duration": duration,
    "attack": title_of,
    "beyond": sections.beyond,
}


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return files("rattle.report").joinpath("assets", name).read_text(encoding="utf-8")


def render(template: str, values: Mapping[str, Any]) -> str:
    """A template of assets/ as HTML: values are escaped, and one that is missing is an error."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= FILTERS
    return environment.from_string(asset(template)).render(style=asset("page.css"), version=__version__, **values)


def for_script(value: Any) -> str:
    """JSON that no content can end the script element of."""
    plain = json.dumps(for_json(value, figures=5), allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def for_json(value: Any, figures: int = 17) -> Any:
    """The same data with null for numbers that are not finite, and so many figures of the others: 17 are all."""
    if isinstance(value, dict):
        return {key: for_json(each, figures) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [for_json(each, figures) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{figures}g}") if math.isfinite(value) else None
    return value


def script_hash(script: str) -> str:
    """The hash by which the content security policy admits a script."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def run_colours(n: int) -> list[tuple[str, str]]:
    """A colour in the light and in the dark theme for each run; the golden section keeps any number of hues apart.

    >>> run_colours(1)
    [('hsl(216, 65%, 36%)', 'hsl(216, 65%, 72%)')]
    """
    hues = [f"{(216 + 222.4922 * i) % 360:.4g}" for i in range(n)]
    return [(f"hsl({hue}, 65%, 36%)", f"hsl({hue}, 65%, 72%)") for hue in hues]


def usual_columns(samples: Samples) -> list[str]:
    """The columns that were measured, and AutoAttack, which the field asks for, where no threat has it."""
    measured = {name for found in samples.values() for name in found}
    usual = [] if any(split_name(name)[0] == "autoattack" for name in measured) else ["autoattack"]
    return sorted_attacks(["clean", *usual, *measured])


def context(
    runs: Runs,
    published: PublishedRows,
    baseline: RunData | None = None,
    frontiers: Sequence[Plain] = (),
) -> Plain:
    """Everything the template needs; `baseline` is the run that the others are compared with, if one was named."""
    specs: list[figures.Spec] = []  # of the figures, in the order in which the template asks for them

    def add_figure(spec: figures.Spec) -> int:
        specs.append(spec)
        return len(specs) - 1

    trained = [run for run in runs if not run.external]  # of the others there are results alone
    groups = compare.group_by_method(runs)
    evaluated = any(run.results for run in runs)
    several = evaluated and any(len(members) > 1 for members in groups.values())
    crowded = len(runs) > compare.ALL_PAIRS
    tested = evaluated and not (crowded and several)  # every pair, to mark the best
    samples = {run.label: run.columns for run in runs}
    attack = compare.robust_attack(runs)
    plotly = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    script = asset("page.js")
    return {
        "runs": runs,
        "trained": trained,
        "variants": groups,
        "crowded": crowded,
        "colours": run_colours(len(runs)),
        "samples": samples,
        "columns": usual_columns(samples),
        "best": compare_rows(samples) if tested else None,
        "seeds": compare.over_seeds(runs) if several else None,
        "comparison": sections.comparison(runs, baseline, several=several),
        "sweep": find_sweep(trained),
        "frontiers": frontiers,
        "cost": [sections.cost(run) for run in trained],
        "robust_attack": attack,
        "published": compare.published_points(runs, attack, published) if attack else [],
        "table_note": TABLE_NOTE,
        "accuracy": accuracy,
        "compare": compare,
        "figures": figures,
        "sections": sections,
        "add_figure": add_figure,
        "figures_json": lambda: for_script(specs),
        "plotly": plotly,
        "script": script,
        "hashes": f"{script_hash(plotly)} {script_hash(script)}",
    }


def build_page(
    folders: Sequence[Path | str] | Path | str,
    out: Path | str | None = None,
    *,
    baseline: Path | str | None = None,
    published: PublishedRows = lambda recipe: (),
) -> Path:
    """Write the page of one or more run folders and return its path: `out`, or report.html in the first folder.

    The folder of a frontier stands for its runs.

    `baseline` is the folder that each other is compared with, one of them or one more; without it all pairs are, and
    of more than four runs each with the first. `published` gives the rows of the paper that a recipe's name stands
    for, to draw beside ours.
    """
    named = [folders] if isinstance(folders, (str, Path)) else folders
    frontiers = read_frontiers(named)
    runs = load_runs(baseline_first(with_runs(named), baseline))
    path = Path(out) if out else Run(results_folder(named[0])).report
    page = render("page.html", context(runs, published, runs[0] if baseline else None, frontiers))
    write_atomically(path, page.encode("utf-8", "replace"))
    return path
