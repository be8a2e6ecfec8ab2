"""Trace a frontier: train methods over their trade-off settings, attack every run, and gather what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rattle.analysis.frontier import Curve, Frontier, Point
from rattle.attacks.registry import get_attack
from rattle.data.dataset import choose_images
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import StoredResult, load_results
from rattle.evaluation.samples import join_seeds, sample_of
from rattle.evaluation.target import target_from_checkpoint
from rattle.recipes.catalog import resolve
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import ball_text, flatten, replace_at, to_plain, trade_off_text
from rattle.runs.io import read_jsonl
from rattle.runs.paths import Run, best_epoch, slugify
from rattle.runs.progress import Console, NullConsole, RichConsole
from rattle.threat import Threat
from rattle.training.sweep import Job, check, folder_name, pending, refuse_failed, run_local

EPSILON = "attack.threat.epsilon"
FACTORS = (1, 1 / 2, 3 / 2, 1 / 3, 2 / 3, 1 / 4, 2, 3 / 4, 1 / 6, 3)  # of the method's own value, in this order


def frontier(
    recipes: Sequence[Recipe | str] | Recipe | str,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    points: int = 5,
    settings: Mapping[str, Sequence[float]] | None = None,
    attacks: Sequence[str] = ("pgd20", "autoattack"),
    n: int | None = 1000,
    out: Path | str = "runs/frontier",
    jobs: int = 1,
    console: Console | None = None,
    quiet: bool = False,
) -> Frontier:
    """Train each recipe over its method's trade-off setting, attack every run, and write frontier.json and a figure.

    recipes: names or recipes, the baseline first; they share data and threat. points: values of the setting;
    the method's own is the first. settings: other values by the setting's dotted name, for the methods that have it.
    attacks, n: the attacks, and the number of test images. jobs: runs trained at once, and processes that attack.
    Finished runs are not trained again: more seeds or points extend a frontier.
    """
    console = NullConsole() if quiet else console or RichConsole()
    if isinstance(recipes, Recipe | str):
        recipes = [recipes]
    bases = [resolve(recipe) if isinstance(recipe, str) else recipe for recipe in recipes]
    grid = plan_frontier(bases, seeds, points, settings or {}, Path(out))
    runs = jobs_of(grid)
    failed = run_local(pending(runs, console), at_once=jobs, out=Path(out), console=console)
    refuse_failed(failed, runs)
    if any(job.state != "finished" for job in runs):
        raise RattleError("another process trains some of the runs: repeat the command when all are finished")
    found = gather_points(grid, bases[0].attack.threat, attacks, n, jobs, console)
    found.save(out)
    return found


MethodRow = tuple[str, str, dict[float, list[Job]]]  # method, setting, and at each of its values a job for each seed


def plan_frontier(
    bases: Sequence[Recipe], seeds: Sequence[int], points: int, settings: Mapping[str, Sequence[float]], out: Path
) -> list[MethodRow]:
    """The runs of each method; recipes that cannot be compared are refused."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise RattleError(f"seeds must be different numbers, one or more, got {list(seeds)}")
    if not 2 <= points <= len(FACTORS):
        raise RattleError(f"points must be from 2 to {len(FACTORS)}, got {points}: a frontier needs two or more")
    names = [base.method for base in bases]
    grid = []
    for base in bases:
        if (base.data, base.attack.threat) != (bases[0].data, bases[0].attack.threat):
            raise RattleError(
                f"{base.name} and {bases[0].name} differ in data or threat: their accuracies cannot be compared"
            )
        method = base.method if names.count(base.method) == 1 else base.name
        setting, values = trade_off_values(base, points, settings)
        jobs: dict[float, list[Job]] = {value: [] for value in values}
        for value, members in jobs.items():
            for seed in seeds:
                recipe = replace(with_value(base, setting, value), seed=seed)
                point = {setting: trade_off_text(setting, value), "seed": seed}
                members.append(Job(out / slugify(base.name) / folder_name(point), recipe))
        grid.append((method, setting, jobs))
    check(jobs_of(grid))
    return grid


def jobs_of(grid: Sequence[MethodRow]) -> list[Job]:
    """All jobs of all methods."""
    found = []
    for _, _, jobs in grid:
        for members in jobs.values():
            found += members
    return found


def trade_off_values(base: Recipe, points: int, settings: Mapping[str, Sequence[float]]) -> tuple[str, list[float]]:
    """The setting of a method and its values, ascending."""
    for name, values in settings.items():
        if trade_off_setting(base, name) is not None:
            if len(set(values)) < 2:
                raise RattleError(f"{name} has one value: a frontier needs two or more")
            return name, sorted(set(values))
    name = base.objective.trade_off
    own = trade_off_setting(base, name)
    if own is None:
        raise RattleError(
            f"{base.method} has no setting that trades clean for robust accuracy: give one with --setting"
        )
    return name, sorted(float(f"{factor * own:.4g}") for factor in FACTORS[:points])


def trade_off_setting(recipe: Recipe, name: str) -> float | None:
    """The value of a setting by its dotted name; None if there is no such number."""
    value = flatten(to_plain(recipe)).get(name)
    return value if isinstance(value, int | float) else None


def with_value(base: Recipe, setting: str, value: float) -> Recipe:
    """The recipe at one point. The inner step keeps its proportion to a training epsilon."""
    recipe = replace_at(base, setting, value)
    if setting == EPSILON:
        ratio = value / base.attack.threat.epsilon
        recipe = replace_at(recipe, "attack.step_size", ratio * base.attack.step_size)
    return recipe


def gather_points(
    grid: Sequence[MethodRow], threat: Threat, attacks: Sequence[str], n: int | None, jobs: int, console: Console
) -> Frontier:
    """Attack what was not attacked yet, and read all flags; every run is attacked by the threat of the first recipe."""
    curves = []
    for method, setting, row in grid:
        points = []
        for value, members in row.items():
            results = [attacked(job.run, threat, attacks, n, jobs, console) for job in members]
            clean, robust = {}, {}
            for name in attacks:
                each = [(found[name], job.recipe.seed) for found, job in zip(results, members, strict=True)]
                clean[name] = join_seeds([sample_of(result.unattacked, seed) for result, seed in each])
                robust[name] = join_seeds([sample_of(result, seed) for result, seed in each])
            held_out = [best_epoch(read_jsonl(job.run.metrics, [])) for job in members]
            points.append(
                Point(
                    value=value,
                    runs=tuple(str(job.folder) for job in members),
                    clean=clean,
                    robust=robust,
                    held_out=None if None in held_out else np.array(held_out),
                )
            )
        curves.append(Curve(method=method, setting=setting, points=tuple(points)))
    return Frontier(curves=tuple(curves), threat=ball_text(threat))


def attacked(
    run: Run, threat: Threat, attacks: Sequence[str], n: int | None, jobs: int, console: Console
) -> dict[str, StoredResult]:
    """The results of a run on a sample of n test images; attacks that have none there are run."""
    target = target_from_checkpoint(run.folder)
    index = choose_images(target.test.y, n)
    stored, _ = load_results(run.results)
    missing = {}
    for name in attacks:
        found = stored.get(name)
        same = found is not None and list(found.index) == index.tolist() and found.epsilon == threat.epsilon
        if not same:
            missing[name] = get_attack(name, threat)
    if missing:
        images = target.images(index)
        console.log(f"attacks {run.folder}")
        evaluate(
            target.model,
            images.x,
            images.y,
            missing,
            out=run.results,
            index=index,
            metadata=target.metadata | {"sample": {"order": "fair", "seed": 0}, "test_images": len(target.test)},
            jobs=jobs,
            console=console,
        )
        stored, _ = load_results(run.results)
    return stored
