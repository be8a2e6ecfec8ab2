"""Methods over seeds in the plane of clean and robust accuracy."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from rattle.analysis.plots import FAINT, LINES
from rattle.report.compare import group_by_method, samples_of
from rattle.report.naming import title_of
from rattle.report.run_data import Runs


def methods_plot(runs: Runs, attacks: Sequence[str]) -> Figure:
    """A panel for each attack: a small dot for each seed of a method, a large one for their mean."""
    figure = Figure(figsize=(4.6 * len(attacks), 4.2), layout="constrained")
    panels = figure.subplots(1, len(attacks), squeeze=False)[0]
    groups = {method: samples_of(members) for method, members in group_by_method(runs).items()}
    for panel, attack in zip(panels, attacks, strict=True):
        for number, (method, samples) in enumerate(groups.items()):
            color = LINES[number % len(LINES)]
            both = samples["clean"], samples[attack]
            dots = [[100 * each for each in sample.accuracies] for sample in both]
            panel.plot(*dots, "o", color=color, markersize=4, alpha=0.5)
            mean = [100 * sample.summary.mean for sample in both]
            panel.plot(*mean, "o", color=color, markersize=8, label=method)
        first = next(iter(groups.values()))[attack]
        seeds = len(first.seeds)
        panel.set_title(f"{title_of(attack)}, n {first.n:,}, {seeds} seed{'s' if seeds > 1 else ''}", fontsize=9)
        panel.set(xlabel="clean accuracy, %", ylabel="robust accuracy, %")
        panel.grid(color=FAINT, alpha=0.25)
    panels[0].legend(frameon=False, fontsize=8)
    return figure
