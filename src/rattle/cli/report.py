"""rattle report: one HTML page of one or more runs, that works offline."""

from dataclasses import dataclass
from pathlib import Path

from rattle.cli.console import Console, say
from rattle.cli.options import RunPaths, check_exists, parse
from rattle.paper.tables import published
from rattle.report.frontiers import with_runs
from rattle.report.page import build_page
from rattle.report.run_data import baseline_first, load_runs
from rattle.report.sections import detailed


@dataclass(frozen=True)
class Options:
    """Write one self-contained HTML page of runs: results, comparison, curves, examples, landscapes, cost, settings.
    What it needs and a run lacks (gallery, accuracy against epsilon, landscapes) is computed from the checkpoint."""

    runs: RunPaths  # run folders, folders of frontiers, or folders of results of other models
    # compare every other folder with this one alone, instead of every pair; with more than four the first when not
    # given
    baseline: str = ""
    out: str = ""  # the page; report.html in the first run's folder when not given
    compute: bool = True  # --no-compute: show only what is stored already
    device: str = "auto"  # where to compute: cuda, mps or cpu; auto takes what there is
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a run names as its model


def main(args: list[str]) -> None:
    options = parse(Options, args, "report")
    check_exists(*options.runs)
    path = write_report(options)
    say(f"the report is {path} ({path.stat().st_size / 1e6:.1f} MB)")


def write_report(options: Options) -> Path:
    """Compute what the page of these run folders lacks, as far as there are checkpoints, and write it.

    Of many runs what takes minutes is computed for those alone whose images are shown.
    """
    baseline = options.baseline or None
    if options.compute:
        from rattle.analysis.prepare import prepare

        # refuses what is no run before minutes are spent on others
        loaded = load_runs(baseline_first(with_runs(options.runs), baseline))
        shown = [run.folder for run in detailed([run for run in loaded if not run.external])]
        prepare(shown, device=options.device, console=Console(), trust_code=options.trust_code)
    return build_page(options.runs, options.out or None, baseline=baseline, published=published)
