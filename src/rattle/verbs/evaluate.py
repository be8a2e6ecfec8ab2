"""rattle evaluate: attack a run or checkpoint, store the verdicts, print the table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from rattle.attacks import named
from rattle.checkpoint import Checkpoint, write_atomically
from rattle.console import Console
from rattle.errors import RattleError
from rattle.evaluation import Evaluation, evaluate
from rattle.runs import model_of, open_checkpoint, run_of
from rattle.tables import accuracy_row, print_table
from rattle.threat import Norm
from rattle.verbs.options import parse


@dataclass(frozen=True)
class ThreatOptions:
    """The threat to evaluate under; what the run was trained for when not given."""

    norm: Norm | None = None
    epsilon: float | None = None


@dataclass(frozen=True)
class Options:
    """Attack a trained model: verdicts go to results/ATTACK.json of its run folder, a table to the terminal."""

    path: Annotated[str, tyro.conf.Positional]  # a run folder or a checkpoint file
    attacks: tuple[str, ...] = ("pgd20", "cw20")  # by name: fgsm, pgdK, cwK
    threat: ThreatOptions = ThreatOptions()
    n: int | None = None  # the first n test images; all when not given
    batch_size: int = 250
    seed: int = 0  # of the attacks' random starts
    json: bool = False  # print the result as one JSON object on stdout, and nothing else
    out: str = ""  # folder for the results; the run's own when not given


def main(args: list[str]) -> None:
    options = parse(Options, args, "evaluate")
    saved = open_checkpoint(options.path)
    given = {k: v for k, v in (("norm", options.threat.norm), ("epsilon", options.threat.epsilon)) if v is not None}
    threat = replace(saved.recipe.attack.threat, **given)
    attacks = {name: named(name, threat) for name in options.attacks}
    test = saved.recipe.data.load().test
    if options.n is not None and options.n < 1:
        raise RattleError(f"--n must be >= 1, got {options.n}")
    x, y = test.x[: options.n], test.y[: options.n]
    result = evaluate(
        model_of(saved), x, y, attacks, batch_size=options.batch_size, seed=options.seed, console=Console()
    )
    told = about(saved, options.seed)
    folder = store(result, told, results_folder(saved.path, options.out))
    if options.json:
        print(json.dumps(told | result.to_plain()))
    else:
        print_table(["recipe", "clean", *attacks], [accuracy_row(saved.recipe.name, result)], title=str(threat))
        print(f"verdicts are in {folder}")


def about(saved: Checkpoint, seed: int) -> dict[str, Any]:
    """What was attacked."""
    recipe = saved.recipe
    return {"checkpoint": str(saved.path), "recipe": recipe.name, "data": recipe.data.name, "seed": seed}


def results_folder(checkpoint: Path, out: str) -> Path:
    run = run_of(checkpoint)
    return Path(out) if out else run.results if run else checkpoint.parent / "results"


def store(result: Evaluation, told: dict[str, Any], folder: Path) -> Path:
    """One file an attack: the same object as for all of them, with that attack alone."""
    for name, verdict in result.verdicts.items():
        alone = replace(result, verdicts={name: verdict})
        write_atomically(folder / f"{name}.json", json.dumps(told | alone.to_plain()).encode())
    return folder
