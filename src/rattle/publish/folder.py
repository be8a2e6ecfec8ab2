"""A run as a folder to publish: weights, config, model card, recipe, results and the page."""

import json
import shutil
import tempfile
from pathlib import Path

from rattle.errors import RattleError
from rattle.evaluation.results import Results, load_results
from rattle.paper.tables import published
from rattle.publish.card import model_card
from rattle.report import build_page
from rattle.runs.io import Plain, read_json, write_atomically, write_json
from rattle.runs.load import load_model, open_checkpoint, run_of
from rattle.runs.paths import CONFIG, WEIGHTS_FILE, Run
from rattle.runs.published import check_model_name, pack, without_folder, without_paths

# What the page shows of a run besides its recipe and results.
SHOWN_FILES = (Run.environment, Run.metrics, Run.timing, Run.gallery, Run.flatness, Path("results/landscape-*.npz"))
PATHS = ("data", "surrogate")  # entries of a result file that may be paths


def write_folder(
    run: Path | str,
    folder: Path | str,
    name: str,
    *,
    license: str = "unknown",
    page: bool = True,
    averaged: bool = True,
) -> list[str]:
    """Write a run as it is published to an empty folder, and return a sentence about each thing that is left out.

    run: a run folder or checkpoint. folder: must not hold anything. name: OWNER/NAME on the hub, for the card. license:
    for the card, an identifier of the hub's such as mit. page: also write report.html, from what is stored. averaged:
    prefer averaged weights to the raw ones.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RattleError(f"{folder} is not empty: name a new folder")
    saved = open_checkpoint(run)
    check_model_name(saved.recipe.model, str(saved.path))  # before its network is built
    weights, config = pack(saved, load_model(saved, averaged=averaged))
    source = run_of(saved.path)
    notes: list[str] = []
    write_atomically(folder / WEIGHTS_FILE, weights)
    write_atomically(folder / CONFIG, (json.dumps(config, indent=1) + "\n").encode())
    write_atomically(Run(folder).recipe, without_paths(saved.recipe).to_yaml().encode())
    results = copy_results(source.results if source else saved.path.parent / "results", saved.path, folder, notes)
    if not results:
        notes.append(f"{run} has no results for the card: `rattle evaluate {run} --attacks pgd20 autoattack` first")
    if page and source:
        write_page(source, Run(folder), name)
    card = model_card(name, config, results, license=license, has_page=Run(folder).report.exists())
    write_atomically(folder / "README.md", card.encode())
    return notes


def copy_results(source: Path, checkpoint: Path, folder: Path, notes: list[str]) -> Results:
    """Copy the result files of these weights, without the paths in them; returns them by attack."""
    found, damaged = load_results(source)
    notes += damaged
    for attack in found:
        plain: Plain = read_json(source / f"{attack}.json", notes) or {}
        measured = Path(str(plain.get("checkpoint", checkpoint))).name
        if measured != checkpoint.name:
            notes.append(f"results/{attack}.json was measured on {measured}, not on {checkpoint.name}, and is left out")
            continue
        if checkpoint.is_file() and (source / f"{attack}.json").stat().st_mtime < checkpoint.stat().st_mtime:
            notes.append(f"results/{attack}.json is older than {checkpoint.name}: evaluate again if it was resumed")
        for key in PATHS:
            if isinstance(plain.get(key), str):
                plain[key] = without_folder(plain[key])
        write_json(Run(folder).results / f"{attack}.json", plain | {"checkpoint": WEIGHTS_FILE})
    return load_results(Run(folder).results)[0]


def write_page(source: Run, target: Run, name: str) -> None:
    """report.html of the run from what is stored, of this run alone and without the paths of this machine."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "run"
        for shown in SHOWN_FILES:
            for file in source.folder.glob(str(shown)):
                to = copy / file.relative_to(source.folder)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, to)
        shutil.copytree(target.folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(WEIGHTS_FILE, CONFIG))
        text = build_page(copy, published=published).read_text(encoding="utf-8")
    write_atomically(target.report, text.replace(str(copy), name).encode())
