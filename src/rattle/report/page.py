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
from rattle.report import compare, figures, sections
from rattle.report.compare import PublishedRows
from rattle.report.naming import duration, number, p_value, significant, title_of
from rattle.report.palette import style_of_runs
from rattle.report.run_data import RunData, baseline_first, load_runs, results_folder
from rattle.report.tables import NOTE
from rattle.runs.io import Plain, write_atomically
from rattle.runs.paths import Run

FILTERS = {"number": number, "significant": significant, "p_value": p_value, "duration": duration, "attack": title_of}


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return files("rattle.report").joinpath("assets", name).read_text(encoding="utf-8")


def render(template: str, values: Mapping[str, Any]) -> str:
    """A template of assets/ as HTML: values are escaped, and one that is missing is an error."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= FILTERS
    return environment.from_string(asset(template)).render(style=asset("page.css"), version=__version__, **values)


def for_script(value: Any) -> str:
    """JSON that no content can end the script element of; a number that is not finite becomes a gap."""
    plain = json.dumps(gaps(value), allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def gaps(value: Any) -> Any:
    """The same data with null where a number is not finite, which only damaged files and losses that overflow have."""
    if isinstance(value, dict):
        return {key: gaps(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [gaps(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def script_hash(script: str) -> str:
    """The hash by which the content security policy admits a script."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def shared(values: Sequence[str]) -> str | None:
    """The value that all have in common, if they are equal."""
    return values[0] if len(set(values)) == 1 else None


def context(runs: Sequence[RunData], published: PublishedRows, baseline: RunData | None = None) -> Plain:
    """Everything the template needs; `baseline` is the run that the others are compared with, if one was named."""
    specs: list[Plain] = []

    def add_figure(spec: Plain, alt: str) -> Plain:
        specs.append(spec)
        return {"number": len(specs) - 1, "alt": alt, "gl": bool(spec.get("gl"))}

    trained = [run for run in runs if not run.external]  # of the others there are results alone
    detailed = sections.detailed(trained)
    seeds, crowded = sections.seeds(runs), len(runs) > compare.ALL_PAIRS
    found = {
        "runs": list(runs),
        "trained": trained,
        "detailed": detailed,
        "variants": compare.group_by_method(runs),
        "crowded": crowded,
        "many": figures.many(runs),
        "run_style": style_of_runs([run.variant for run in runs]),
        "title": " beside ".join(run.label for run in runs) if len(runs) < 3 else f"{len(runs)} runs compared",
        "method": shared([run.method for run in runs]),
        "data": shared([run.data for run in runs]),
        "model": shared([run.model for run in runs]),
        "threat": shared([run.threat for run in runs]),
        "headline": sections.headline(runs, tested=not (crowded and seeds)),
        "sweep": sections.sweep(runs, add_figure),
        "training": sections.training(runs, add_figure),
        "trade_off": sections.scatter(runs, add_figure, published),
        "epsilons": sections.epsilons(runs, add_figure),
        "examples": [sections.examples(run) for run in detailed],
        "classes": [sections.by_class(run, add_figure) for run in detailed],
        "landscape": sections.landscape(runs, add_figure),
        "cost": [sections.cost(run) for run in trained],
        "differences": sections.differences(trained),
        "seeds": seeds,
        "table_note": NOTE,
        "comparison": sections.comparison(runs, baseline, several=bool(seeds)),
    }
    return found | scripts() | {"figures_json": for_script(specs)}


def scripts() -> Plain:
    """The page's scripts, and the hashes that the policy names."""
    plotly = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    found = {"plotly": plotly, "script": asset("page.js")}
    return found | {"hashes": " ".join(script_hash(script) for script in found.values())}


def build(
    folders: Sequence[Path | str] | Path | str,
    out: Path | str | None = None,
    *,
    baseline: Path | str | None = None,
    published: PublishedRows = lambda recipe: (),
) -> Path:
    """Write the page of one or more run folders and return its path: `out`, or report.html in the first run's folder.

    `baseline` is the folder that each other is compared with, one of them or one more; without it all pairs are, and
    of more than four runs each with the first. `published` gives the rows of the paper that a recipe's name stands
    for, to draw beside ours.
    """
    named = [folders] if isinstance(folders, (str, Path)) else folders
    runs = load_runs(baseline_first(named, baseline))
    path = Path(out) if out else Run(results_folder(named[0])).report
    write_atomically(
        path, render("page.html", context(runs, published, runs[0] if baseline else None)).encode("utf-8", "replace")
    )
    return path
