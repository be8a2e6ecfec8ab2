"""What each section of the page says: plain values for the template, or a sentence about what is missing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from rattle.report import compare, figures, surfaces, thumbnails, trade_off
from rattle.report.naming import epsilon_in_words, threat_of
from rattle.report.run_data import RunData, Verdict, finite
from rattle.report.tables import ORDER, Comparison, title_of
from rattle.stats import wilson

Plain = dict[str, Any]
NORMS = {"linf": "\u2113\u221e", "l2": "\u2113\u2082"}
MOST_SURFACES = 8  # a browser keeps few WebGL contexts


def threat_in_words(run: RunData) -> str:
    threat = threat_of(run.recipe)
    return f"{NORMS.get(threat[0], threat[0])}, epsilon {epsilon_in_words(threat[1])}" if threat else "unknown threat"


def accuracy(flags: Sequence[int]) -> Plain:
    """A share in % with its interval."""
    interval = wilson(sum(flags), len(flags))
    return {
        "value": 100 * sum(flags) / len(flags),
        "low": 100 * interval.low,
        "high": 100 * interval.high,
        "n": len(flags),
        "epsilon": "",
    }


def attack_columns(runs: Sequence[RunData]) -> list[str]:
    """The attacks that any run has met, the usual ones first; AutoAttack always has its place."""
    met = dict.fromkeys(name for run in runs for name in run.verdicts)
    if not met.keys() & {"autoattack", "aa"}:
        met["autoattack"] = None
    return sorted(met, key=lambda name: (ORDER.index(name) if name in ORDER else 1.5, name))


def headline(runs: Sequence[RunData]) -> Plain:
    columns = attack_columns(runs)
    rows = []
    for i, run in enumerate(runs):
        cells: list[Plain | None] = []
        verdict = next(iter(run.verdicts.values()), None)
        cells.append(accuracy(verdict.clean) if verdict else None)
        cells += [attacked(run, run.verdicts.get(name)) for name in columns]
        rows.append({"run": run, "index": i, "cells": cells, "threat": threat_in_words(run)})
    missing = [run for run in runs if not run.verdicts]
    return {"columns": ["Clean", *map(title_of, columns)], "rows": rows, "missing": missing}


def attacked(run: RunData, verdict: Verdict | None) -> Plain | None:
    """Accuracy under an attack, with its radius where that is not the one trained for."""
    if verdict is None:
        return None
    trained = threat_of(run.recipe)
    other = verdict.epsilon is not None and trained is not None and abs(verdict.epsilon - trained[1]) > 1e-9
    return accuracy(verdict.flags) | {"epsilon": epsilon_in_words(verdict.epsilon or 0.0) if other else ""}


def training(runs: Sequence[RunData], figure: Any) -> Plain:
    """Curves of the runs that have any."""
    trained = [run for run in runs if run.metrics]
    validated = [run for run in trained if any("val_robust" in entry for entry in run.metrics)]
    found: Plain = {
        "untrained": [run for run in runs if not run.metrics],
        "short": [run for run in trained if len(run.metrics) == 1],
        "unvalidated": [run for run in trained if run not in validated],
        "terms": [],
    }
    if not trained:
        return found
    if validated:
        found["accuracy"] = figure(
            figures.accuracy_curves(runs), "Held-out accuracy by epoch. " + last_accuracies(runs)
        )
    top = figures.highest_loss(trained)
    for i, run in enumerate(runs):
        if run.metrics:
            last = ", ".join(f"{name} {value:.3f}" for name, value in last_terms(run).items())
            alt = f"Loss of {run.label} by named term; at the end {last}."
            found["terms"].append({"run": run, "index": i, "figure": figure(figures.loss_terms(run, top), alt)})
    rates = [finite(run.metrics[-1].get("lr")) for run in trained]
    alt = "Learning rate by epoch; at the end " + ", ".join(f"{rate:.2g}" for rate in rates if rate is not None) + "."
    found["rate"] = figure(figures.learning_rates(runs), alt)
    return found


def last_terms(run: RunData) -> dict[str, float]:
    last = {name: finite(run.metrics[-1].get(name)) for name in ("loss", *figures.terms(run))}
    return {name: value for name, value in last.items() if value is not None}


def last_accuracies(runs: Sequence[RunData]) -> str:
    """The last figures of each run in a sentence, for those who cannot see the curves."""
    said = []
    for run in runs:
        ends = [v for name in ("val_clean", "val_robust") for v in figures.column(run, name, 100)[-1:] if v is not None]
        if len(ends) == 2:
            said.append(f"{run.label} ends at {ends[0]:.1f} % clean and {ends[1]:.1f} % robust")
    return "; ".join(said) + "."


def scatter(runs: Sequence[RunData], figure: Any, rows_of: trade_off.PublishedRows) -> Plain:
    attack = trade_off.robust_attack(runs)
    if attack is None:
        return {}
    ours, theirs = trade_off.measured(runs, attack), trade_off.published(runs, attack, rows_of)
    changed = []
    for run in runs:
        overrides = str(run.gallery["overrides"]) if run.gallery and "overrides" in run.gallery else ""
        if overrides and any(theirs[i].label for i in range(len(theirs)) if runs[theirs[i].index].name == run.name):
            changed.append({"run": run, "overrides": overrides})
    alt = "Clean against robust accuracy. " + "; ".join(
        f"{point.label}: {point.clean:.1f} % clean, {point.robust:.1f} % robust" for point in (*ours, *theirs)
    )
    spec = figures.trade_off([*ours, *theirs], title_of(attack))
    return {"figure": figure(spec, f"{alt}."), "attack": title_of(attack), "paper": theirs, "changed": changed}


def epsilons(runs: Sequence[RunData], figure: Any) -> Plain:
    """Accuracy against the radius, as a figure and in numbers."""
    seen = [run for run in runs if run.gallery is not None]
    if not seen:
        return {"missing": list(runs)}
    rows = []
    for run in seen:
        gallery = run.gallery or {}
        shares = [100 * float(row.mean()) for row in gallery["robust"]]
        rows.append(
            {"run": run, "points": [(f"{float(e):.4g}", s) for e, s in zip(gallery["epsilons"], shares, strict=True)]}
        )
    said = "; ".join(
        f"{row['run'].label} falls from {row['points'][0][1]:.1f} % to {row['points'][-1][1]:.1f} %" for row in rows
    )
    alt = f"Accuracy against the attack's radius: {said}."
    n = sorted({run.gallery["robust"].shape[1] for run in seen if run.gallery})
    return {
        "figure": figure(figures.by_epsilon(runs), alt),
        "rows": rows,
        "missing": [run for run in runs if run.gallery is None],
        "n": " or ".join(map(str, n)),
    }


def examples(run: RunData) -> Plain | None:
    """The gallery of one run: pictures with what the network takes them for."""
    g = run.gallery
    if g is None:
        return None
    factor = thumbnails.enlargement(g["x_adv"] - g["x"])
    names = [str(name) for name in g["classes"]]
    shown = []
    for i, place in enumerate(g["index"]):
        true, before, after = int(g["y"][place]), int(g["clean_predicted"][place]), int(g["adversarial_label"][i])
        shown.append(
            {
                "true": names[true],
                "clean": {
                    "label": names[before],
                    "right": before == true,
                    "sure": 100 * float(g["clean_confidence"][i]),
                },
                "adversarial": {
                    "label": names[after],
                    "right": after == true,
                    "sure": 100 * float(g["adversarial_confidence"][i]),
                },
                "x": thumbnails.picture(g["x"][i]),
                "delta": thumbnails.perturbation(g["x_adv"][i] - g["x"][i], factor),
                "x_adv": thumbnails.picture(g["x_adv"][i]),
            }
        )
    return {"shown": shown, "factor": f"{factor:g}", "attack": title_of(str(g["attack"]))}


def by_class(run: RunData, i: int, figure: Any) -> Plain | None:
    """Accuracy class by class and the confusion matrix of one run."""
    if run.gallery is None:
        return None
    names, clean, robust = figures.class_shares(run)
    known = [(value, name) for value, name in zip(robust, names, strict=True) if value is not None]
    (least, weakest), (most, strongest) = min(known), max(known)
    alt = (
        f"Accuracy of {run.label} by class under attack: lowest for {weakest} with {least:.1f} %, "
        f"highest for {strongest} with {most:.1f} %."
    )
    counts = figures.confusion_counts(run)
    wrong = counts - np.diag(np.diag(counts))
    true, taken = np.unravel_index(int(wrong.argmax()), wrong.shape)
    said = (
        f"Confusion matrix of {run.label} under attack: most often, {wrong[true, taken]} times, {names[true]} is "
        f"taken for {names[taken]}."
        if wrong.any()
        else f"Confusion matrix of {run.label} under attack: no image is misclassified."
    )
    return {
        "bars": figure(figures.per_class(run, i), alt),
        "confusion": figure(figures.confusion(run), said),
        "said": f"{alt} {said.partition(': ')[2].capitalize()}",
        "rows": list(zip(names, clean, robust, strict=True)),
    }


def landscape(runs: Sequence[RunData], figure: Any) -> Plain:
    """Surfaces over the input plane, image by image, and over the weights, all on one scale a panel."""
    drawn = [(i, run) for i, run in enumerate(runs) if "input" in run.landscapes][:MOST_SURFACES]
    walked = [(i, run) for i, run in enumerate(runs) if "weight-2d" in run.landscapes][:MOST_SURFACES]
    found: Plain = {
        "panels": [],
        "missing": [run for run in runs if not run.landscapes],
        "left_out": max(0, sum("input" in run.landscapes for run in runs) - MOST_SURFACES),
        "one_plane": surfaces.one_plane([run for _, run in drawn]),
        "one_detail": len({str((run.flatness or {}).get("detail")) for run in runs if run.flatness}) < 2,
        "flatness": [(i, run) for i, run in enumerate(runs) if run.flatness],
    }
    images = min((len(run.landscapes["input"]["loss"]) for _, run in drawn), default=0)
    scale = surfaces.common_range([run.landscapes["input"]["loss"][:images] for _, run in drawn])
    if scale:
        found["panels"] += [image_panel(drawn, image, scale, figure) for image in range(images)]
    for kind in ("clean", "adversarial"):
        if panel := weight_panel(walked, kind, figure):
            found["panels"].append(panel)
    if any("weight-1d" in run.landscapes for run in runs):
        alt = "Mean loss along one filter-normalised direction in weight space, clean and adversarial."
        found["line"] = figure(surfaces.weight_lines(runs), alt)
    return found


def rise(run: RunData, height: np.ndarray) -> str:
    values = height[np.isfinite(height)]
    return f"{run.label}: loss between {values.min():.2f} and {values.max():.2f}" if values.size else run.label


def image_panel(runs: list[tuple[int, RunData]], image: int, scale: tuple[float, float], figure: Any) -> Plain:
    """One image's loss for every run."""
    cells = []
    for i, run in runs:
        found = run.landscapes["input"]
        spec = surfaces.surface(found["a"], found["b"], found["loss"][image], scale, ("gradient", "Rademacher"))
        alt = f"Loss surface around image {image + 1}. {rise(run, found['loss'][image])}."
        cells.append({"run": run, "index": i, "figure": figure(spec, alt)})
    first = runs[0][1]
    label = int(first.landscapes["input"]["y"][image])
    names = [str(name) for name in first.gallery["classes"]] if first.gallery else []
    name = names[label] if label < len(names) else f"class {label}"
    picture = thumbnails.picture(first.landscapes["input"]["x"][image])
    return {"title": f"Image {image + 1}: {name}", "name": name, "picture": picture, "cells": cells, "space": "input"}


def weight_panel(runs: list[tuple[int, RunData]], kind: str, figure: Any) -> Plain | None:
    """The mean loss around the weights for every run that has it."""
    having = [(i, run) for i, run in runs if np.isfinite(run.landscapes["weight-2d"][kind]).any()]
    scale = surfaces.common_range([run.landscapes["weight-2d"][kind] for _, run in having])
    if scale is None:
        return None
    cells = []
    for i, run in having:
        found = run.landscapes["weight-2d"]
        spec = surfaces.surface(found["a"], found["b"], found[kind], scale, ("direction 1", "direction 2"))
        alt = f"Mean {kind} loss around the weights. {rise(run, found[kind])}."
        cells.append({"run": run, "index": i, "figure": figure(spec, alt)})
    return {"title": f"Weights, {kind}", "cells": cells, "space": "weight"}


def cost(runs: Sequence[RunData]) -> list[Plain]:
    """Time, throughput and memory of each run, from what it logged."""
    rows = []
    for i, run in enumerate(runs):
        seconds = {int(e["epoch"]): s for e in run.timing if (s := finite(e.get("seconds"))) is not None and s > 0}
        steps = {int(e["epoch"]): finite(e.get("step")) for e in run.metrics}
        batch = finite(run.recipe.get("batch_size"))
        rates = [
            batch * (now - (steps.get(epoch - 1) or 0)) / seconds[epoch]
            for epoch, now in steps.items()
            if batch and now is not None and epoch in seconds and (epoch == 1 or steps.get(epoch - 1) is not None)
        ]
        memory = [m for e in run.timing if (m := finite(e.get("memory_mb"))) is not None]
        rows.append(
            {
                "run": run,
                "index": i,
                "epochs": len(run.metrics),
                "total": sum(seconds.values()) if seconds else None,
                "epoch": statistics.median(seconds.values()) if seconds else None,
                "rate": statistics.median(rates) if rates else None,
                "memory": max(memory) if memory else None,
                "device": run.environment.get("device"),
            }
        )
    return rows


def flat(plain: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(plain, dict):
        return {prefix: "none" if plain is None else str(plain)}
    return {k: v for key, value in plain.items() for k, v in flat(value, f"{prefix}.{key}".lstrip(".")).items()}


def differences(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Settings in which the recipes differ."""
    settings = [flat(run.recipe) for run in runs]
    names = dict.fromkeys(name for found in settings for name in found)
    rows = [(name, [found.get(name, "none") for found in settings]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def seeds(runs: Sequence[RunData]) -> Comparison | None:
    """The table over seeds, when there is a method with several."""
    groups = compare.by_method(runs)
    if all(len(members) < 2 for members in groups.values()) or not any(run.verdicts for run in runs):
        return None
    return compare.over_seeds(runs)
