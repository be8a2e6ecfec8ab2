"""Methods over seeds in the plane of clean and robust accuracy."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from rattle.analysis.plots import LINES, trade_off_panels
from rattle.report.compare import group_by_method, samples_of
from rattle.report.naming import title_of
from rattle.report.run_data import Runs


def methods_plot(runs: Runs, attacks: Sequence[str]) -> Figure:
    """A panel for each attack: a small dot for each seed of a method, a large one for their mean."""
    groups = {method: samples_of(members) for method, members in group_by_method(runs).items()}
    first = next(iter(groups.values()))
    titles = [f"{title_of(name)}, n {first[name].n:,}, {first[name].seeds_text}" for name in attacks]
    figure, panels = trade_off_panels(titles)
    for panel, attack in zip(panels, attacks, strict=True):
        for number, (method, samples) in enumerate(groups.items()):
            color = LINES[number % len(LINES)]
            both = samples["clean"], samples[attack]
            dots = [[100 * each for each in sample.accuracies] for sample in both]
            panel.plot(*dots, "o", color=color, markersize=4, alpha=0.5)
            mean = [100 * sample.summary.mean for sample in both]
            panel.plot(*mean, "o", color=color, markersize=8, label=method)
    panels[0].legend(frameon=False, fontsize=8)
    return figure
