"""Compute from checkpoints what a report shows of runs, galleries and landscapes, and store it in RUN/results.

Runs that are compared share images, directions and grids. Each checkpoint is read once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from rattle.analysis import landscape, plots
from rattle.analysis.config import QUICK, LandscapeConfig
from rattle.analysis.flatness import flatness
from rattle.analysis.gallery import first_of_each_class, gallery
from rattle.attacks import PGD
from rattle.errors import RattleError
from rattle.inputs import floats_for
from rattle.models.user import refuse_code
from rattle.runs.arrays import Gallery, InputPlane, same_plane
from rattle.runs.checkpoint import Checkpoint
from rattle.runs.distributed import choose_device
from rattle.runs.io import load_arrays, read_json, save_arrays, write_json
from rattle.runs.load import load_model, open_checkpoint
from rattle.runs.paths import Run
from rattle.runs.progress import SILENT, Advance, Console
from rattle.threat import Threat

Stored = dict[str, Any]  # kind of landscape, as `Run.landscape` names its file -> its dataclass of arrays
PICTURES: dict[str, Callable[[Any], Figure]] = {
    "input": plots.input_surfaces,
    "weight-1d": plots.weight_curves,
    "weight-2d": plots.weight_surfaces,
}


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run folder and its best checkpoint, read and checked."""

    run: Run
    checkpoint: Checkpoint


def open_trained(folder: Path | str, *, trust_code: bool = False) -> OpenRun:
    """A run; trust_code: as for `load`."""
    if not Path(folder).is_dir():
        raise RattleError(f"there is no run folder {folder}")
    saved = open_checkpoint(folder, trust_code=trust_code)
    refuse_code([] if trust_code else [saved.recipe.model], str(saved.path))  # before anything is computed
    return OpenRun(Run(Path(folder)), saved)


def open_runs(folders: Sequence[Path | str], *, trust_code: bool) -> list[OpenRun]:
    """Several runs, one or more."""
    if not folders:
        raise RattleError("name at least one run folder")
    return [open_trained(folder, trust_code=trust_code) for folder in folders]


def labels(runs: Sequence[OpenRun]) -> list[str]:
    """A short name for each run: its folder's, with the parent's where two agree."""
    folders = [opened.run.folder.resolve() for opened in runs]
    names = [folder.name for folder in folders]
    return [f.name if names.count(f.name) == 1 else "/".join(f.parts[-2:]) for f in folders]


def compute_landscapes(
    folders: Sequence[Path | str],
    config: LandscapeConfig | None = None,
    *,
    device: str = "auto",
    console: Console = SILENT,
    trust_code: bool = False,
) -> list[Path]:
    """Input and weight landscapes and flatness numbers of runs, side by side; returns the pictures' paths.

    The first of the run folders is the reference: its gradient spans every run's input plane, since surfaces are
    comparable over one plane only. device: where to compute; trust_code: as for `load`.
    """
    runs, where = open_runs(folders, trust_code=trust_code), choose_device(device)
    for other in runs[1:]:
        ours, theirs = runs[0].checkpoint.images, other.checkpoint.images
        if ours != theirs:
            which = f"{other.run.folder} is of {theirs[0]} and {runs[0].run.folder} of {ours[0]}"
            raise RattleError(f"{which}: landscapes are compared on the same images")
    return draw(store_landscapes(runs, config or LandscapeConfig(), console, where), runs)


def store_landscapes(
    runs: Sequence[OpenRun], config: LandscapeConfig, console: Console, device: torch.device | str = "cpu"
) -> dict[str, Stored]:
    """Compute and store the landscapes and flatness numbers of runs of the same data; {label: arrays}."""
    test, threat = runs[0].checkpoint.recipe.data.load().test, runs[0].checkpoint.recipe.attack.threat
    shown = test[first_of_each_class(test.y, config.images)].to(device)
    many = test[torch.arange(min(config.weight_images, len(test)))].to(device)
    side = 1.0 if threat.norm == "linf" else math.sqrt(shown.x[0].numel())  # length of a direction of signs
    radius = max(config.radius * threat.epsilon, 1e-3) / side
    reference = load_model(runs[0].checkpoint, device=device)
    x, draws = floats_for(reference, shown.x), torch.Generator().manual_seed(config.seed)
    plane = landscape.input_plane(reference, x, shown.y, radius=radius, points=config.points, generator=draws)
    stored: dict[str, Stored] = {}
    for label, opened in zip(labels(runs), runs, strict=True):
        model, threat = load_model(opened.checkpoint, device=device), opened.checkpoint.recipe.attack.threat
        shown_x, many_x = floats_for(model, shown.x), floats_for(model, many.x)  # in the layout of each run's network
        steps = config.line_points + config.surface_points**2
        with console.progress(f"landscapes and flatness of {label}", steps) as advance:
            surface = landscape.input_surface(model, shown_x, shown.y, plane)
            weights = weight_landscapes(model, many_x, many.y, threat, config, advance)
            flat = flatness(
                model,
                many_x,
                many.y,
                threat=threat,
                iterations=config.iterations,
                draws=config.draws,
                seed=config.seed,
            )
        stored[label] = {"plane": plane, "input": surface, **weights}
        for kind, value in stored[label].items():
            save_arrays(value, opened.run.landscape(kind))
        metadata = {"step": opened.checkpoint.step, "n": len(many), "detail": asdict(config)}
        write_json(opened.run.flatness, metadata | flat, indent=1)
    return stored


def weight_landscapes(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, config: LandscapeConfig, advance: Advance
) -> Stored:
    """Mean loss along one filter-normalised direction and over the plane of two; the same draws for every run."""
    generator = torch.Generator().manual_seed(config.seed)
    directions = [landscape.filter_normalised(model, generator=generator) for _ in range(2)]
    attack = PGD(threat=threat, steps=config.attack_steps, step_size=2.5 * threat.epsilon / config.attack_steps)
    surface = partial(
        landscape.weight_surface, model, x, y, radius=config.weight_radius, seed=config.seed, advance=advance
    )
    attack_2d = attack if config.surface_attacked else None
    return {
        "weight-1d": surface(directions=directions[:1], points=config.line_points, attack=attack),
        "weight-2d": surface(directions=directions, points=config.surface_points, attack=attack_2d),
    }


def draw(stored: dict[str, Stored], runs: Sequence[OpenRun]) -> list[Path]:
    """The three pictures, of all runs together, as PNG and SVG in every run's results; the first run's paths."""
    written = []
    for kind, picture in PICTURES.items():
        figure = picture({label: found[kind] for label, found in stored.items()})
        paths = [plots.save_figure(figure, opened.run.landscape(kind).with_suffix("")) for opened in runs]
        written += paths[0]
    return written


def gallery_up_to_date(opened: OpenRun) -> bool:
    try:
        return load_arrays(Gallery, opened.run.gallery).step == opened.checkpoint.step
    except RattleError:
        return False


def landscapes_up_to_date(runs: Sequence[OpenRun]) -> bool:
    """Whether all runs hold landscapes of their present weights, over one plane and with one configuration."""
    try:
        planes = [load_arrays(InputPlane, opened.run.landscape("plane")) for opened in runs]
    except RattleError:
        return False
    flat = [read_json(opened.run.flatness, []) or {} for opened in runs]
    for found, opened in zip(flat, runs, strict=True):
        if found.get("step") != opened.checkpoint.step or found.get("detail") != flat[0].get("detail"):
            return False
        if not all(opened.run.landscape(kind).is_file() for kind in PICTURES):
            return False
    return same_plane(planes)


def prepare(
    folders: Sequence[Path | str],
    config: LandscapeConfig = QUICK,
    *,
    device: str = "auto",
    console: Console = SILENT,
    trust_code: bool = False,
) -> list[Path]:
    """Compute what a report of these run folders lacks or holds of older weights; returns the files written.

    Runs of the same data share their landscapes' plane. Runs without checkpoints are passed over; for one that cannot
    be read or computed the reason is logged, since a report shows the rest. device: where to compute; trust_code: as
    for `load`.
    """
    written, where = [], choose_device(device)
    groups: dict[tuple[Any, ...], list[OpenRun]] = {}
    for folder in folders:
        if any((Path(folder) / "checkpoints").glob("*.safetensors")):
            try:
                opened = open_trained(folder, trust_code=trust_code)
                groups.setdefault(opened.checkpoint.images, []).append(opened)
            except RattleError as reason:
                console.log(f"not computed for {folder}: {reason}")
    for runs in groups.values():
        try:
            for opened in runs:
                if not gallery_up_to_date(opened):
                    found = gallery(opened.checkpoint, seed=config.seed, device=where, console=console)
                    written.append(save_arrays(found, opened.run.gallery))
            if landscapes_up_to_date(runs):
                continue
            if any(opened.run.landscape("input").with_suffix(".png").exists() for opened in runs):
                draw(store_landscapes(runs, LandscapeConfig(seed=config.seed), console, where), runs)  # as it was drawn
            else:
                store_landscapes(runs, config, console, where)
            written += [opened.run.landscape("input") for opened in runs]
        except RattleError as reason:
            console.log(f"not computed for {', '.join(str(opened.run.folder) for opened in runs)}: {reason}")
    return written
