"""What each section of the page shows, as plain values for the template; what a run lacks is left out."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from rattle.evaluation.samples import Sample
from rattle.recipes.schema import flatten
from rattle.report import compare, figures, thumbnails
from rattle.report.naming import epsilon_text, threat_of, title_of
from rattle.report.run_data import RunData, finite
from rattle.report.significance import PairedTest
from rattle.report.sweeps import find_sweep
from rattle.report.tables import Cell, Comparison, accuracy, sorted_attacks
from rattle.report.tables import compare as compare_rows
from rattle.runs.arrays import GROUPS, InputSurface, WeightSurface
from rattle.runs.io import Plain

AddFigure = Callable[[figures.Spec, str], Plain]  # (specification, description) -> what the template's `plot` takes
MOST_SURFACES = 8  # a browser keeps few WebGL contexts
MOST_DETAILED = 12  # runs whose images and classes are on the page: each takes a quarter of a megabyte


def detailed(runs: Sequence[RunData], most: int = MOST_DETAILED) -> list[RunData]:
    """At most so many of the runs, in their order: the first of each variant before further seeds."""
    firsts = list({run.variant: run for run in reversed(runs)}.values())[::-1]
    chosen = [*firsts, *(run for run in runs if run not in firsts)][:most]
    return [run for run in runs if run in chosen]


def headline(runs: Sequence[RunData], tested: bool) -> Plain:
    """Accuracy of every run, clean and under each attack that any run has a result of; AutoAttack is always listed.

    tested: whether every pair is, to mark the best.
    """
    samples = {run.label: compare.columns_of(run) for run in runs}
    names = {"autoattack", *(name for columns in samples.values() for name in columns if name != "clean")}
    columns = ["clean", *sorted_attacks(list(names))]
    table = compare_rows(samples) if tested and any(samples.values()) else None
    rows = []
    for run in runs:
        marks = dict(zip(table.columns, table.rows[run.label], strict=True)) if table else {}
        cells = [result_cell(run, name, samples[run.label], marks) for name in columns]
        rows.append({"run": run, "cells": cells})
    return {"columns": [*map(title_of, columns)], "rows": rows, "tested": tested}


def result_cell(run: RunData, name: str, samples: Mapping[str, Sample], marks: Mapping[str, Cell]) -> Plain | None:
    """Accuracy with its number of images, whether it is significantly best, and the radius where it is another."""
    if name not in samples:
        return None
    result, trained = run.results.get(name), threat_of(run.main_attack)
    epsilon = result.epsilon if result else None
    other = epsilon is not None and trained is not None and abs(epsilon - trained[1]) > 1e-9
    found = asdict(accuracy(samples[name].flags[0])) | {
        "n": samples[name].n,
        "best": name in marks and marks[name].best,
    }
    return found | {"epsilon": epsilon_text(epsilon) if other and epsilon is not None else ""}


def training(runs: Sequence[RunData], add_figure: AddFigure) -> Plain:
    """Curves of the runs that have any."""
    trained = [run for run in runs if run.metrics]
    unvalidated = [run for run in trained if not any("val_robust" in entry for entry in run.metrics)]
    found: Plain = {"unvalidated": unvalidated}
    if len(unvalidated) < len(trained):
        found["accuracy"] = []
        for kind in ("robust", "clean"):
            curves = add_figure(figures.accuracy_curves(runs, kind), f"Held-out {kind} accuracy by epoch.")
            found["accuracy"].append({"kind": kind, "figure": curves})
    found["terms"] = []
    for run in trained:
        terms = add_figure(figures.loss_terms(run), f"Loss of {run.label} by named term.")
        found["terms"].append({"run": run, "figure": terms})
    if trained:
        found["rate"] = add_figure(figures.learning_rates(runs), "Learning rate by epoch.")
    return found


def scatter(runs: Sequence[RunData], add_figure: AddFigure, rows_of: compare.PublishedRows) -> Plain:
    """Clean against robust accuracy, and which runs changed the published recipe they are shown beside."""
    attack = compare.robust_attack(runs)
    if attack is None:
        return {}
    paper = compare.published_points(runs, attack, rows_of)
    points = [*compare.measured_points(runs, attack), *paper]
    published = {point.run.name for point in paper}
    overrides = [(run, run.gallery.overrides) for run in runs if run.gallery and run.name in published]
    alt = f"Clean accuracy against accuracy under {title_of(attack)}."
    return {
        "figure": add_figure(figures.trade_off(points, title_of(attack)), alt),
        "attack": title_of(attack),
        "paper": bool(paper),
        "changed": [{"run": run, "overrides": changes} for run, changes in overrides if changes],
    }


def epsilons(runs: Sequence[RunData], add_figure: AddFigure) -> Plain:
    """Accuracy against the radius."""
    images = {run.gallery.robust.shape[1] for run in runs if run.gallery is not None}
    if not images:
        return {}
    curves = add_figure(figures.by_epsilon(runs), "Accuracy against the attack's radius.")
    return {"figure": curves, "n": " or ".join(map(str, sorted(images)))}


def examples(run: RunData) -> Plain | None:
    """The gallery of one run: images, perturbations, and what the network predicts; by why they are shown."""
    g = run.gallery
    if g is None:
        return None
    factor = thumbnails.enlargement_factor(g.x_adv - g.x)
    attack, n = title_of(g.attack), len(g.y)
    titles = {
        "first": "The first test image of each class, the same for every run",
        "failure": f"Broken most confidently: of {n} images those that the model is surest of after {attack}",
        "survivor": f"Withstood most narrowly: of {n} images those whose true class leads least after {attack}",
    }
    groups: dict[str, list[Plain]] = {name: [] for name in GROUPS}
    for i, place in enumerate(g.index):
        true, clean, adversarial = int(g.y[place]), int(g.clean_predicted[place]), int(g.adversarial_label[i])
        groups[str(g.group[i]) if len(g.group) else GROUPS[0]].append(
            {
                "true": run.classes[true],
                "clean": prediction(run, clean, true, g.clean_confidence[i]),
                "adversarial": prediction(run, adversarial, true, g.adversarial_confidence[i]),
                "x": thumbnails.picture(g.x[i]),
                "delta": thumbnails.perturbation(g.x_adv[i] - g.x[i], factor),
                "x_adv": thumbnails.picture(g.x_adv[i]),
            }
        )
    shown = [{"title": titles[name], "items": members} for name, members in groups.items() if members]
    return {"groups": shown, "factor": f"{factor:g}", "attack": attack}


def prediction(run: RunData, label: int, true: int, confidence: float) -> Plain:
    return {"label": run.classes[label], "correct": label == true, "confidence": 100 * float(confidence)}


def by_class(run: RunData, add_figure: AddFigure) -> Plain | None:
    """Accuracy class by class and the confusion matrix of one run."""
    g = run.gallery
    if g is None:
        return None
    return {
        "bars": add_figure(figures.per_class(g, run.index), f"Accuracy of {run.label} by class, clean and attacked."),
        "confusion": add_figure(figures.confusion(g), f"Confusion matrix of {run.label} under attack."),
    }


def landscape(runs: Sequence[RunData], add_figure: AddFigure) -> Plain:
    """Surfaces over the input plane, image by image, and over the weights, all on one scale a panel."""
    drawn = [run for run in runs if run.input_surface or run.weight_surface]
    chosen = detailed(drawn, MOST_SURFACES)
    shown = [(run, run.input_surface) for run in chosen if run.input_surface]
    weights = [(run, run.weight_surface) for run in chosen if run.weight_surface]
    found: Plain = {
        "panels": [*image_panels(shown, add_figure), *weight_panels(weights, add_figure)],
        "left_out": len(drawn) - len(chosen),
        "same_plane": figures.comparable([run for run, _ in shown]),
        "same_settings": len({str(run.flatness.get("detail")) for run in runs if run.flatness}) < 2,
        "flatness": [run for run in runs if run.flatness],
    }
    if any(run.weight_line for run in runs):
        alt = "Mean loss along one filter-normalised direction in weight space."
        found["line"] = add_figure(figures.weight_lines(runs), alt)
    return found


def image_panels(shown: Sequence[tuple[RunData, InputSurface]], add_figure: AddFigure) -> Iterator[Plain]:
    """One panel an image: its loss for every run, all on one scale."""
    images = min((len(surface.loss) for _, surface in shown), default=0)
    scale = figures.common_range([surface.loss[:images] for _, surface in shown])
    for image in range(images if scale else 0):
        first_run, first = shown[0]
        label = int(first.y[image])
        name = first_run.classes[label] if label < len(first_run.classes) else f"class {label}"
        losses = [(run, surface, surface.loss[image]) for run, surface in shown]
        cells = surface_cells(losses, scale, ("gradient", "Rademacher"), f"around image {image + 1}", add_figure)
        picture = thumbnails.picture(first.x[image])
        yield {"title": f"Image {image + 1}: {name}", "name": name, "picture": picture, "cells": cells}


def weight_panels(shown: Sequence[tuple[RunData, WeightSurface]], add_figure: AddFigure) -> Iterator[Plain]:
    """The mean loss around the weights, clean and adversarial, for every run that has it."""
    for kind in ("clean", "adversarial"):
        losses = [(run, surface, getattr(surface, kind)) for run, surface in shown]
        scale = figures.common_range([loss for *_, loss in losses])
        cells = surface_cells(losses, scale, ("direction 1", "direction 2"), f"around its weights, {kind}", add_figure)
        if cells:
            yield {"title": f"Weights, {kind}", "cells": cells}


def surface_cells(
    losses: Sequence[tuple[RunData, figures.Grid, np.ndarray]],
    scale: tuple[float, float] | None,
    titles: tuple[str, str],
    where: str,
    add_figure: AddFigure,
) -> list[Plain]:
    """The surfaces of several runs on one scale; none if no loss is finite."""
    cells = []
    for run, grid, loss in losses:
        if scale is not None:
            alt = f"Loss surface of {run.label} {where}."
            cells.append({"run": run, "figure": add_figure(figures.surface(grid, loss, scale, titles), alt)})
    return cells


def cost(run: RunData) -> Plain:
    """Time, throughput and memory of a run, from what it logged."""
    seconds = [time for entry in run.timing if (time := finite(entry.get("seconds")))]
    memory = [size for entry in run.timing if (size := finite(entry.get("memory_mb"))) is not None]
    steps, batch = (run.metrics[-1].get("step") if run.metrics else None), run.recipe.get("batch_size")
    total, steps, batch = sum(seconds), finite(steps), finite(batch)
    complete = len(seconds) == len(run.metrics)  # every epoch has its time
    return {
        "run": run,
        "total": total or None,
        "epoch": statistics.median(seconds) if seconds else None,
        "rate": batch * steps / total if batch and steps and total and complete else None,
        "memory": max(memory, default=None),
    }


def differences(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Settings in which the recipes differ."""
    settings = [flatten(run.recipe) for run in runs]
    rows = []
    for name in dict.fromkeys(name for found in settings for name in found):
        row = [str(found.get(name)) for found in settings]
        if len(set(row)) > 1:
            rows.append((name, row))
    return rows


def sweep(runs: Sequence[RunData], add_figure: AddFigure) -> Plain | None:
    """Accuracy against the setting that the runs sweep, if they do."""
    found = find_sweep(runs)
    if found is None:
        return None
    attack = title_of(found.attack) if found.attack else None
    more = {"setting": found.setting, "attack": attack, "several": found.several}
    return {"figure": add_figure(figures.by_setting(found), f"Accuracy against {found.setting}."), **more}


def comparison(runs: Sequence[RunData], baseline: RunData | None, several: bool) -> Plain:
    """Paired tests: all pairs of few runs, or each with the baseline; of many also as a table of differences, and over
    seeds where there are `several`."""
    tests, refused = compare.compare_runs(runs, baseline)
    crowded = len(runs) > compare.ALL_PAIRS
    against = (baseline or runs[0]) if baseline or crowded else None
    methods, alone = compare.compare_methods(runs, against) if against and crowded and several else ([], [])
    found = {"tests": tests, "refused": [*alone, *refused], "baseline": against, "crowded": crowded}
    return found | {"methods": by_attack(methods), "networks": by_attack(tests) if crowded else None}


def by_attack(tests: Sequence[PairedTest]) -> Plain | None:
    """Tests against one baseline as a table: a row for each other, a column for each attack; None without any."""
    if not tests:
        return None
    rows: dict[str, Plain] = {}
    for test in tests:
        rows.setdefault(test.second, {})[test.attack] = test
    columns = list(dict.fromkeys(test.attack for test in tests))
    return {"first": tests[0].first, "columns": columns, "rows": rows, "n": len(tests)}


def seeds(runs: Sequence[RunData]) -> Comparison | None:
    """The table over seeds, when there is a method with several."""
    several = any(len(members) > 1 for members in compare.group_by_method(runs).values())
    return compare.over_seeds(runs) if several and any(run.results for run in runs) else None
