"""rattle report: one HTML page of one or more runs, that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rattle.analysis.prepare import prepare
from rattle.cli.console import Console
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.paper.tables import published
from rattle.report import build
from rattle.runs import progress
from rattle.runs.progress import NullConsole


@dataclass(frozen=True)
class Options:
    """Write one self-contained HTML page of runs: results, comparison, curves, examples, landscapes, cost, settings.
    What it needs and a run lacks (gallery, accuracy against epsilon, landscapes) is computed from the checkpoint."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # run folders; the first is the one others are compared with
    out: str = ""  # the page; report.html in the first run's folder when not given
    compute: bool = True  # --no-compute: show only what is stored already


def main(args: list[str]) -> None:
    options = parse(Options, args, "report")
    path = report(options.runs, options.out or None, compute=options.compute, console=Console())
    print(f"the report is {path} ({path.stat().st_size / 1e6:.1f} MB)")


def report(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    compute: bool = True,
    console: progress.Console | None = None,
) -> Path:
    """Compute what the page lacks, as far as there are checkpoints, and write it."""
    console = console or NullConsole()
    if compute:
        ready = [run for run in runs if any((Path(run) / "checkpoints").glob("*.safetensors"))]
        for group in together(ready, console):
            try:
                prepare(group, console=console)
            except RattleError as reason:
                console.log(f"not computed for {', '.join(map(str, group))}: {reason}")
    return build(runs, out, published=published)


def together(runs: Sequence[Path | str], console: progress.Console) -> list[list[Path | str]]:
    """Runs whose landscapes can share images: those of the same data."""
    from rattle.runs.load import open_checkpoint

    groups: dict[tuple[str, ...], list[Path | str]] = {}
    for run in runs:
        try:
            saved = open_checkpoint(run)
        except RattleError as reason:
            console.log(f"not computed for {run}: {reason}")
            continue
        groups.setdefault((saved.recipe.data.name, *saved.classes, str(saved.shape)), []).append(run)
    return list(groups.values())
