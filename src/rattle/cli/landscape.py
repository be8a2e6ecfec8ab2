"""rattle landscape: loss surfaces and flatness numbers of runs, on the same images, directions and scale."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from rattle.analysis.config import LandscapeConfig
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import RunPaths, check_exists, parse
from rattle.runs.io import read_json
from rattle.runs.paths import Run

FLATNESS_COLUMNS = ("run", "local Lipschitz", "input curvature", "weight curvature", "rise under noise")


@dataclass(frozen=True)
class Options:
    """Draw the loss around test images and around the weights: arrays (.npz), PNG and SVG go to RUN/results.
    Several runs share images, directions and loss scale; the first gives the gradient direction."""

    runs: RunPaths  # run folders, the reference first
    device: str = "auto"  # cuda, mps or cpu; auto takes what there is
    config: Annotated[LandscapeConfig, tyro.conf.arg(name="")] = field(default_factory=LandscapeConfig)
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that a run names as its model


def main(args: list[str]) -> None:
    options = parse(Options, args, "landscape")
    check_exists(*options.runs)
    from rattle.analysis.prepare import compute_landscapes

    pictures = compute_landscapes(
        options.runs, options.config, device=options.device, trust_code=options.trust_code, console=Console()
    )
    rows = []
    for run in options.runs:
        flat = read_json(Run(Path(run)).flatness, []) or {}
        numbers = [f"{flat[name]:.3f}" for name in ("lipschitz", "input_eigenvalue", "weight_eigenvalue")]
        rows.append([run, *numbers, f"{flat['noise_rise']:.4f} ± {flat['noise_rise_error']:.4f}"])
    print_table(FLATNESS_COLUMNS, rows, title="flatness: smaller is flatter")
    say("\n".join(f"  {path}" for path in pictures))
