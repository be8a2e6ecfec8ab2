"""What sections of the page show that takes more than a loop in the template; what a run lacks is left out."""

import statistics
from collections.abc import Sequence

from rattle.recipes.schema import epsilon_text, flatten
from rattle.report import compare, figures, thumbnails
from rattle.report.naming import title_of
from rattle.report.run_data import RunData, Runs, finite
from rattle.report.significance import PairedTest
from rattle.report.tables import sorted_attacks
from rattle.runs.arrays import GALLERY_GROUPS
from rattle.runs.io import Plain
from rattle.stats import Interval

MOST_SURFACES = 8  # a browser keeps few WebGL contexts
MOST_DETAILED = 12  # runs whose images and classes are on the page: each takes a quarter of a megabyte


def detailed(runs: Runs, most: int = MOST_DETAILED) -> list[RunData]:
    """At most so many of the runs, in their order: the first of each variant before further seeds."""
    firsts = list({run.variant: run for run in reversed(runs)}.values())[::-1]
    chosen = [*firsts, *(run for run in runs if run not in firsts)][:most]
    return [run for run in runs if run in chosen]


def other_radius(run: RunData, attack: str) -> str:
    """The radius of a result that is not the one trained for; empty if it is, or nothing was attacked."""
    epsilon = run.results[attack].epsilon if attack in run.results else None
    if epsilon is None or run.epsilon is None or abs(epsilon - run.epsilon) <= 1e-9:
        return ""
    return epsilon_text(epsilon)


def validated(runs: Runs) -> list[RunData]:
    """The runs that logged an accuracy on held-out images."""
    return [run for run in runs if any("val_robust" in entry for entry in run.metrics)]


def warned(runs: Sequence[RunData]) -> list[str]:
    """A sentence for each run in which training saw signs of false robustness: what first, when, and how often."""
    found = []
    for run in runs:
        entries = [entry for entry in run.metrics if isinstance(entry.get("warning"), str)]
        if entries:
            times = f"first in epoch {entries[0]['epoch']}, in {len(entries)} of {len(run.metrics)}"
            found.append(f"{run.label}: {entries[0]['warning']} ({times})")
    return found


def corrupted(runs: Sequence[RunData]) -> Plain:
    """The runs whose accuracy under corruptions was measured: over all kinds and by kind, in percent with intervals."""
    found: list[Plain] = []
    for run in runs:
        plain = run.corruptions or {}
        kinds = plain.get("kinds")
        rows = {kind: percent_of(entry) for kind, entry in kinds.items()} if isinstance(kinds, dict) else {}
        mean, n = percent_of(plain.get("mean")), finite(plain.get("n"))
        if mean and n:
            found.append({"run": run, "n": int(n), "data": plain.get("data"), "mean": mean, "kinds": rows})
    return {"runs": found, "kinds": list(dict.fromkeys(kind for each in found for kind in each["kinds"]))}


def percent_of(entry: object) -> str:
    """An accuracy of corruptions.json with its interval, in percent; empty where a number is missing."""
    if not isinstance(entry, dict):
        return ""
    share, low, high = (finite(entry.get(name)) for name in ("accuracy", "low", "high"))
    return "" if share is None or low is None or high is None else Interval(low, high).around(share)


def example_images(run: RunData) -> Plain | None:
    """The gallery of one run: images, perturbations, and what the network predicts; by why they are shown."""
    g = run.gallery
    if g is None:
        return None
    factor = thumbnails.enlargement_factor(g.x_adv - g.x)
    attack, n = title_of(g.attack), len(g.y)
    titles = {
        "first": "The first test image of each class, the same for every run",
        "failure": f"Broken most confidently: of {n} images those that the model is surest of after {attack}",
        "survivor": f"Withstood most narrowly: of {n} images those that the model is least sure of after {attack}",
    }
    groups: dict[str, list[Plain]] = {title: [] for title in titles.values()}
    for i, place in enumerate(g.index):
        item = {
            "true": run.classes[g.y[place]],
            "clean": run.classes[g.clean_predicted[place]],
            "clean_confidence": 100 * float(g.clean_confidence[i]),
            "adversarial": run.classes[g.adversarial_label[i]],
            "adversarial_confidence": 100 * float(g.adversarial_confidence[i]),
            "x": thumbnails.data_uri(g.x[i]),
            "delta": thumbnails.perturbation(g.x_adv[i] - g.x[i], factor),
            "x_adv": thumbnails.data_uri(g.x_adv[i]),
        }
        groups[titles[str(g.group[i]) if len(g.group) else GALLERY_GROUPS[0]]].append(item)
    return {"groups": groups, "factor": f"{factor:g}", "attack": attack}


def beyond(run: RunData) -> list[Plain]:
    """What a mean hides, a row for each column of a run: its worst class and its calibration, where one is known."""
    rows = []
    for column, sample in run.columns.items():
        worst, known = (next(iter(found), None) for found in (sample.worst_classes, sample.calibrations))
        if worst or known:
            rows.append({"column": column, "n": sample.n, "worst": worst, "calibration": known})
    return rows


def attacked_confidently(runs: Runs) -> str | None:
    """The last column under attack, AutoAttack's where there is one, with known confidences."""
    columns = [name for run in runs for name, sample in run.columns.items() if sample.calibrations]
    return next((name for name in reversed(sorted_attacks(columns)) if name != "clean"), None)


def landscape_panels(runs: Runs) -> list[Plain]:
    """Surfaces over the input plane, image by image, and over the weights, all on one scale a panel."""
    panels = []
    inputs = [(run, run.input_surface) for run in runs if run.input_surface]
    for image in range(min((len(surface.loss) for _, surface in inputs), default=0)):
        run, first = inputs[0]
        label = int(first.y[image])
        name = run.classes[label] if label < len(run.classes) else f"class {label}"
        losses = [(run, surface, surface.loss[image]) for run, surface in inputs]
        panel = {"title": f"Image {image + 1}: {name}", "name": name, "picture": thumbnails.data_uri(first.x[image])}
        panels.append(panel | {"surfaces": figures.surfaces(losses, ("gradient", "Rademacher"))})
    weights = [(run, run.weight_surface) for run in runs if run.weight_surface]
    for kind in ("clean", "adversarial"):
        losses = [(run, surface, getattr(surface, kind)) for run, surface in weights]
        shown = figures.surfaces(losses, ("direction 1", "direction 2"))
        panels.append({"title": f"Weights, {kind}", "surfaces": shown})
    return [panel for panel in panels if panel["surfaces"]]


def cost(run: RunData) -> Plain:
    """Time, throughput and memory of a run, from what it logged."""
    seconds = [time for entry in run.timing if (time := finite(entry.get("seconds")))]
    memory = [size for entry in run.timing if (size := finite(entry.get("memory_mb"))) is not None]
    total, rate = sum(seconds), None
    if run.metrics and total and len(seconds) == len(run.metrics):  # every epoch has its time
        steps, batch = finite(run.metrics[-1].get("step")), finite(run.recipe.get("batch_size"))
        rate = batch * steps / total if batch and steps else None
    epoch = statistics.median(seconds) if seconds else None
    return {"run": run, "total": total or None, "epoch": epoch, "rate": rate, "memory": max(memory, default=None)}


def differences(runs: Runs) -> list[tuple[str, list[str]]]:
    """Settings in which the recipes differ."""
    settings = [flatten(run.recipe) for run in runs]
    rows = []
    for name in dict.fromkeys(name for found in settings for name in found):
        row = [str(found.get(name)) for found in settings]
        if len(set(row)) > 1:
            rows.append((name, row))
    return rows


def comparison(runs: Runs, baseline: RunData | None, several: bool) -> Plain:
    """Paired tests: all pairs of few runs, or each with the baseline; of many also as a table of differences, and over
    seeds where there are `several`."""
    tests, refused = compare.compare_runs(runs, baseline)
    crowded = len(runs) > compare.ALL_PAIRS
    against = (baseline or runs[0]) if baseline or crowded else None
    methods, alone = compare.compare_methods(runs, against) if against and crowded and several else ([], [])
    found = {"tests": tests, "refused": [*alone, *refused], "baseline": against}
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
