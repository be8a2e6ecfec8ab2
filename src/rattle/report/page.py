"""One self-contained HTML page of runs: template, style, script, plotly and every figure in a single file.

Nothing is fetched: a content security policy forbids it, and lets only the page's own scripts run, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from rattle import __version__
from rattle.errors import RattleError
from rattle.report import compare, sections
from rattle.report.run_data import RunData, load_runs
from rattle.report.tables import NOTE, title_of
from rattle.report.trade_off import PublishedRows


def text(name: str) -> str:
    return files("rattle.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def plotly() -> str:
    """plotly.js as the plotly package ships it."""
    return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def for_script(value: Any) -> str:
    """JSON that no content can end the script element of; not-a-number is refused."""
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def fingerprint(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


class Figures:
    """The page's figures: called with a specification and its description, gives the number to draw it under."""

    def __init__(self) -> None:
        self.specs: list[dict[str, Any]] = []

    def __call__(self, spec: dict[str, Any], alt: str) -> dict[str, Any]:
        self.specs.append(spec)
        return {"number": len(self.specs) - 1, "alt": alt, "gl": bool(spec.get("gl"))}


def number(value: float | None, decimals: int = 1, missing: str = "not recorded") -> str:
    """A figure for reading, with a true minus sign."""
    return missing if value is None else f"{value:,.{decimals}f}".replace("-", "\u2212")


def significant(value: float | None, missing: str = "not recorded") -> str:
    """Three significant figures."""
    return missing if value is None else f"{value:#.3g}".rstrip(".").replace("-", "\u2212")


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float | None) -> str:
    """Seconds in words.

    >>> duration(75), duration(7322)
    ('1 min 15 s', '2 h 2 min')
    """
    if seconds is None:
        return "not recorded"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def shared(values: Sequence[str]) -> str | None:
    """What all say, if they all say the same."""
    return values[0] if len(set(values)) == 1 else None


def context(runs: Sequence[RunData], published: PublishedRows) -> dict[str, Any]:
    """Everything the template needs."""
    figure = Figures()
    found = {
        "runs": list(runs),
        "title": " beside ".join(run.label for run in runs) if len(runs) < 3 else f"{len(runs)} runs compared",
        "data": shared([str(run.setting("data", "name")) for run in runs]),
        "model": shared([str(run.setting("model")) for run in runs]),
        "threat": shared([sections.threat_in_words(run) for run in runs]),
        "headline": sections.headline(runs),
        "training": sections.training(runs, figure),
        "trade_off": sections.scatter(runs, figure, published),
        "epsilons": sections.epsilons(runs, figure),
        "examples": [sections.examples(run) for run in runs],
        "classes": [sections.by_class(run, i, figure) for i, run in enumerate(runs)],
        "landscape": sections.landscape(runs, figure),
        "cost": sections.cost(runs),
        "differences": sections.differences(runs) if len(runs) > 1 else [],
        "seeds": sections.seeds(runs),
        "table_note": NOTE,
        "version": __version__,
    }
    found["pairs"], found["refused"] = compare.pairs(runs)
    found["baseline_only"] = len(runs) > compare.ALL_PAIRS
    found["specs"] = figure.specs
    return found


def render(runs: Sequence[RunData], published: PublishedRows) -> str:
    """The page as text."""
    environment = Environment(
        loader=DictLoader({"page.html": text("page.html")}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "significant": significant,
        "p_value": p_value,
        "duration": duration,
        "attack": title_of,
    }
    values = context(runs, published)
    script = text("page.js")
    scripts = {"plotly": plotly(), "script": script}
    return environment.get_template("page.html").render(
        **values,
        **scripts,
        figures_json=for_script(values["specs"]),
        hashes=" ".join(fingerprint(part) for part in scripts.values()),
        style=text("page.css"),
    )


def build(
    folders: Sequence[Path | str], out: Path | str | None = None, *, published: PublishedRows = lambda recipe: ()
) -> Path:
    """Write the page of one or more run folders; beside the first run when no place is given.

    `published` gives the rows of the paper that a recipe's name stands for, to draw beside ours.
    """
    runs = load_runs([folders] if isinstance(folders, (str, Path)) else folders)
    path = Path(out) if out else runs[0].folder / "report.html"
    page = render(runs, published)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(page, encoding="utf-8")
        os.replace(part, path)
    except OSError as reason:
        raise RattleError(f"cannot write {path}: {reason.strerror or reason}") from reason
    return path
