"""What a page shows of runs and that takes computing: galleries and landscapes, made from their checkpoints.

Runs that are compared share images, directions and grids; everything is written into RUN/results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rattle.analysis import landscape
from rattle.analysis import plots as landscape_plots
from rattle.analysis.flatness import Flatness, flatness
from rattle.analysis.gallery import first_of_each_class, gallery
from rattle.analysis.landscape import Progress
from rattle.attacks import PGD
from rattle.data import Images, to_float
from rattle.errors import RattleError
from rattle.runs.arrays import (
    FLATNESS,
    GALLERY,
    INPUT_PLANE,
    INPUT_SURFACE,
    WEIGHT_LINE,
    WEIGHT_SURFACE,
    InputPlane,
    InputSurface,
    WeightSurface,
    same_plane,
)
from rattle.runs.checkpoint import Checkpoint
from rattle.runs.io import load_arrays, save_arrays, write_atomically
from rattle.runs.load import load_model, open_checkpoint
from rattle.runs.paths import Run
from rattle.runs.progress import Advance, Console, NullConsole
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class LandscapeConfig:
    """How closely to look."""

    images: int = 3  # images whose input space is drawn: the first of each class
    points: int = 25  # of each axis in input space
    radius: float = 2.0  # how far the input plane reaches, in units of the threat's epsilon
    weight_images: int = 128  # test images that the weight-space loss and the flatness numbers are means over
    line_points: int = 25  # along the one direction in weight space
    surface_points: int = 15  # along each of the two directions
    weight_radius: float = 1.0  # how far to walk, in lengths of the filters themselves
    attack_steps: int = 5  # of the attack behind the adversarial loss in weight space
    surface_attacked: bool = True  # adversarial loss over two directions, the slowest part
    iterations: int = 50  # of the power iterations
    draws: int = 20  # of the weight noise
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("images", "weight_images", "attack_steps"):
            if getattr(self, name) < 1:
                raise RattleError(f"{name.replace('_', '-')} must be >= 1, got {getattr(self, name)}")


QUICK = LandscapeConfig(
    weight_images=64, line_points=15, surface_points=11, surface_attacked=False, iterations=20, draws=8
)


def telling(advance: Advance) -> Progress:
    """A bar's `advance` as a function of (done, total), on a bar of a hundred."""
    shown = 0

    def tell(done: int, total: int) -> None:
        nonlocal shown
        now = 100 * done // max(total, 1)
        if now > shown:
            advance(now - shown)
            shown = now

    return tell


def opened(folders: Sequence[Path | str]) -> list[tuple[Run, Checkpoint]]:
    """The runs and their best checkpoints; they must be of the same images."""
    if not folders:
        raise RattleError("name at least one run folder")
    found = []
    for folder in folders:
        if not Path(folder).is_dir():
            raise RattleError(f"there is no run folder {folder}")
        found.append((Run(Path(folder)), open_checkpoint(folder)))
    first = found[0][1]
    for run, saved in found[1:]:
        if (saved.recipe.data.name, saved.shape, saved.classes) != (first.recipe.data.name, first.shape, first.classes):
            raise RattleError(
                f"{run.folder} is of {saved.recipe.data.name} and {found[0][0].folder} of {first.recipe.data.name}: "
                "landscapes are compared on the same images"
            )
    return found


def labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run: its folder's, made longer where two agree."""
    names = [run.folder.resolve().name for run in runs]
    return [
        name if names.count(name) == 1 else "/".join(run.folder.resolve().parts[-2:])
        for name, run in zip(names, runs, strict=True)
    ]


def reach(threat: Threat, x: Tensor, radius: float) -> float:
    """How far to walk along a direction of signs: that far in the threat's norm."""
    side = 1.0 if threat.norm == "linf" else math.sqrt(x[0].numel())
    return max(radius * threat.epsilon, 1e-3) / side


def compute_landscapes(
    folders: Sequence[Path | str],
    detail: LandscapeConfig | None = None,
    *,
    pictures: bool = True,
    console: Console | None = None,
) -> list[Path]:
    """Input and weight landscapes and flatness numbers of runs, side by side; returns the pictures' paths.

    The first run is the reference: its gradient spans every run's input plane, as one plane is what makes two
    surfaces comparable.
    """
    detail, console, runs = detail or LandscapeConfig(), console or NullConsole(), opened(folders)
    reference = runs[0][1]
    test, threat = reference.recipe.data.load().test, reference.recipe.attack.threat
    chosen = test[first_of_each_class(test.y, detail.images)]
    x, y = to_float(chosen.x), chosen.y
    plane = landscape.input_plane(
        load_model(reference),
        x,
        y,
        radius=reach(threat, x, detail.radius),
        points=detail.points,
        generator=torch.Generator().manual_seed(detail.seed),
    )
    surfaces: dict[str, list[Any]] = {}
    for label, (run, saved) in zip(labels([run for run, _ in runs]), runs, strict=True):
        surfaces[label] = portrait(run, saved, (x, y), plane, test, detail, label, console)
    return draw(surfaces, [run for run, _ in runs]) if pictures else []


def portrait(
    run: Run,
    saved: Checkpoint,
    shown: tuple[Tensor, Tensor],
    plane: InputPlane,
    test: Images,
    detail: LandscapeConfig,
    label: str,
    console: Console,
) -> list[Any]:
    """One run's arrays, computed and stored."""
    model, threat = load_model(saved), saved.recipe.attack.threat
    some = test[torch.arange(min(detail.weight_images, len(test)))]
    x, y = to_float(some.x), some.y
    with console.progress(f"input landscape of {label}", 100) as advance:
        inputs = landscape.input_surface(model, *shown, plane, progress=telling(advance))
    with console.progress(f"weight landscape of {label}", 200) as advance:
        line, surface = walks(model, x, y, threat, detail, advance)
    with console.progress(f"flatness of {label}", 100) as advance:
        flat = flatness(
            model,
            x,
            y,
            threat=threat,
            iterations=detail.iterations,
            draws=detail.draws,
            seed=detail.seed,
            progress=telling(advance),
        )
    for value, name in (
        (plane, INPUT_PLANE),
        (inputs, INPUT_SURFACE),
        (line, WEIGHT_LINE),
        (surface, WEIGHT_SURFACE),
    ):
        save_arrays(value, run.results / name)
    told = {"step": int(saved.progress.get("step", 0)), "n": len(x), "detail": asdict(detail), **in_numbers(flat)}
    write_atomically(run.results / FLATNESS, json.dumps(told, indent=1).encode())
    return [inputs, line, surface]


def walks(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, detail: LandscapeConfig, advance: Advance
) -> tuple[WeightSurface, WeightSurface]:
    """Along one filter-normalised direction, and over the plane of two; the same draws for every run."""
    generator = torch.Generator().manual_seed(detail.seed)
    first, second = (landscape.filter_normalised(model, generator=generator) for _ in range(2))
    attack = PGD(threat=threat, steps=detail.attack_steps, step_size=2.5 * threat.epsilon / detail.attack_steps)

    def walk(directions: list[dict[str, Tensor]], points: int, attack: PGD | None) -> WeightSurface:
        return landscape.weight_surface(
            model,
            x,
            y,
            directions=directions,
            radius=detail.weight_radius,
            points=points,
            attack=attack,
            seed=detail.seed,
            progress=telling(advance),
        )

    line = walk([first], detail.line_points, attack)
    return line, walk([first, second], detail.surface_points, attack if detail.surface_attacked else None)


def in_numbers(flat: Flatness) -> dict[str, Any]:
    """Flatness as plain numbers: means over images, and how far the power iterations were from converged."""
    return {
        "lipschitz": float(flat.lipschitz.values.mean()),
        "lipschitz_norm": flat.lipschitz.norm,
        "lipschitz_epsilon": flat.lipschitz.epsilon,
        "input_eigenvalue": float(flat.input.values.mean()),
        "input_residual": float(np.median(flat.input.residuals)),
        "weight_eigenvalue": float(flat.weight.values[0]),
        "weight_residual": float(flat.weight.residuals[0]),
        "noise_rise": flat.noise.mean,
        "noise_rise_error": flat.noise.standard_error,
        "noise_sigma": flat.noise.sigma,
    }


def draw(surfaces: dict[str, list[Any]], runs: Sequence[Run]) -> list[Path]:
    """The three pictures, of all runs together, as PNG and SVG in every run's results."""
    inputs: dict[str, InputSurface] = {label: found[0] for label, found in surfaces.items()}
    figures = {
        "landscape-input": landscape_plots.input_surfaces(inputs),
        "landscape-weight-1d": landscape_plots.weight_curves({label: found[1] for label, found in surfaces.items()}),
        "landscape-weight-2d": landscape_plots.weight_contours({label: found[2] for label, found in surfaces.items()}),
    }
    written = []
    for stem, figure in figures.items():
        first = landscape_plots.save(figure, runs[0].results / stem)
        written += first
        for run in runs[1:]:
            for path in first:
                write_atomically(run.results / path.name, path.read_bytes())
    return written


def stored_step(path: Path) -> int | None:
    """The optimizer step a file of results was made at; None when it is missing, unreadable or of another kind."""
    try:
        if path.suffix == ".json":
            return int(json.loads(path.read_text(encoding="utf-8"))["step"])
        with np.load(path, allow_pickle=False) as file:
            return int(file["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def alike(runs: Sequence[Run]) -> bool:
    """Whether all runs hold landscapes over one and the same plane, looked at equally closely."""
    try:
        planes = [load_arrays(InputPlane, run.results / INPUT_PLANE) for run in runs]
        details = [json.loads((run.results / FLATNESS).read_text(encoding="utf-8")).get("detail") for run in runs]
        stored = all(
            (run.results / name).is_file() for run in runs for name in (INPUT_SURFACE, WEIGHT_LINE, WEIGHT_SURFACE)
        )
    except (RattleError, OSError, ValueError, AttributeError):
        return False
    return stored and same_plane(planes) and all(detail == details[0] for detail in details[1:])


def looked_at_closely(run: Run) -> bool:
    """Does the run hold an attacked weight surface, the part that only `rattle landscape` computes?"""
    path = run.results / WEIGHT_SURFACE
    return path.exists() and load_arrays(WeightSurface, path).attacked


def prepare(
    folders: Sequence[Path | str] | Path | str, detail: LandscapeConfig = QUICK, *, console: Console | None = None
) -> list[Path]:
    """Compute what a report of these runs still lacks or holds of older weights; returns the files written."""
    folders = [folders] if isinstance(folders, (str, Path)) else list(folders)
    runs, written = opened(folders), []
    for run, saved in runs:
        path = run.results / GALLERY
        if stored_step(path) != saved.progress.get("step", 0):
            written.append(save_arrays(gallery(saved, seed=detail.seed, console=console), path))
    fresh = all(stored_step(run.results / FLATNESS) == saved.progress.get("step", 0) for run, saved in runs)
    if not (fresh and alike([run for run, _ in runs])):
        closely = any(looked_at_closely(run) for run, _ in runs)  # what `rattle landscape` drew is not made coarser
        compute_landscapes(
            folders, LandscapeConfig(seed=detail.seed) if closely else detail, pictures=closely, console=console
        )
        written += [run.results / INPUT_SURFACE for run, _ in runs]
    return written
