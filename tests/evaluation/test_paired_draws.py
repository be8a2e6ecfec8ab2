"""A random model beside a deterministic one: what their paired test and its interval are worth, by simulation."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.cli.compare import pair_to_plain, paired_row
from rattle.evaluation.draws import measure_draws, pilot_rates
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.samples import Sample, difference, two_sided_p
from rattle.report.compare import compare_runs, over_seeds
from rattle.report.run_data import load_runs
from rattle.report.tables import write_table
from rattle.stats import Interval
from rattle.threat import Threat

N, TRIALS = 100, 400


class SharedDraw(nn.Module):
    """Class 0 where the image's value and noise that all images of a pass share are above 0."""

    def __init__(self, shared: float, own: float) -> None:
        super().__init__()
        self.shared, self.own = shared, own

    def forward(self, x: Tensor) -> Tensor:
        z = x + self.shared * torch.randn(1) + self.own * torch.randn(len(x), 1)
        return torch.cat([z, torch.zeros_like(z)], 1)


def trials(shared: float, own: float, shift: float = 0.0) -> tuple[list[float], float, int]:
    """p of each trial, and how many intervals hold the true difference: the plain model has own noise fixed for good.

    Noise of both models has the same size, so without a shift their true accuracies are equal.
    """
    y, model = torch.zeros(N, dtype=torch.long), SharedDraw(shared, own)
    size = math.hypot(shared, own)
    truth = [0.5 + 0.5 * math.erf((0.5 + s) / math.sqrt(2 * (1 + size**2))) for s in (0.0, shift)]
    found, covered = [], 0
    torch.manual_seed(0)
    for _ in range(TRIALS):
        x = 0.5 + torch.randn(N, 1)
        plain = (x + shift + size * torch.randn(N, 1) > 0)[:, 0]
        own_draws = measure_draws(model, x, y, pilot_rates(model, x, y, 32), 32)
        rates = tuple(own_draws.rate.tolist())
        random = Sample(seeds=(0,), flags=(rates,), errors=(own_draws.row()["variance"] ** 0.5 / N,), draws=32)
        other = Sample(seeds=(0,), flags=(tuple(plain.int().tolist()),))
        p, gap = two_sided_p(random, other), difference(other, random)
        assert p is not None
        assert gap is not None
        found.append(p)
        covered += gap.interval.low <= truth[1] - truth[0] <= gap.interval.high
    return found, truth[1] - truth[0], covered


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "own"), [(0.7, 0.0), (0.0, 1.0)])
def test_a_random_and_an_equally_accurate_model_differ_in_one_of_twenty_trials(shared: float, own: float) -> None:
    p, _, covered = trials(shared, own)
    assert 0.005 <= np.mean(np.array(p) < 0.05) <= 0.09, "400 trials: 0.05 to within 3.7 standard errors"
    assert 0.92 <= covered / TRIALS <= 0.995


@pytest.mark.slow
def test_a_better_model_is_found_and_the_interval_holds_by_how_much() -> None:
    p, truth, covered = trials(0.3, 0.3, shift=0.6)
    assert truth > 0.1
    assert np.mean(np.array(p) < 0.05) > 0.5
    assert covered / TRIALS >= 0.92


def test_draws_that_images_share_widen_every_interval_and_test() -> None:
    rates = tuple(float(v) for v in np.linspace(0.2, 0.9, N))
    flags = tuple(int(v < 0.4) for v in np.linspace(0, 1, N))
    narrow, wide = (Sample(seeds=(0,), flags=(rates,), errors=(error,), draws=32) for error in (0.0, 0.1))
    plain = Sample(seeds=(0,), flags=(flags,))

    def width(interval: Interval) -> float:
        return interval.high - interval.low

    assert width(wide.interval) > width(narrow.interval) + 0.1
    ps = [two_sided_p(sample, plain) for sample in (narrow, wide)]
    assert ps[0] is not None
    assert ps[1] is not None
    assert ps[0] < 0.05 < ps[1]
    several = [Sample(seeds=(0, 1), flags=(rates,) * 2, errors=(error,) * 2, draws=32) for error in (0.0, 0.1)]
    two = Sample(seeds=(0, 1), flags=(flags,) * 2)
    gaps = [difference(sample, two) for sample in several]
    assert gaps[0] is not None
    assert gaps[1] is not None
    assert width(gaps[1].interval) > width(gaps[0].interval) + 0.05
    assert gaps[1].p > gaps[0].p


def test_table_page_and_compare_show_draws_and_their_interval(tmp_path: Path) -> None:
    x = torch.rand(60, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(60, dtype=torch.long)
    attack = {"pgd20": PGD(threat=Threat(epsilon=0.01), steps=1)}

    class Margin(nn.Module):
        def __init__(self, noise: float) -> None:
            super().__init__()
            self.noise = noise

        def forward(self, x: Tensor) -> Tensor:
            z = x.flatten(1)[:, :1] - 0.3
            return torch.cat([z, torch.zeros_like(z)], 1) + self.noise * torch.randn(1, 2)

    for name, noise in {"plain": 0.0, "random": 0.3}.items():
        evaluate(Margin(noise), x, y, attack, out=tmp_path / name, metadata={"name": name}, quiet=True)
    plain, random = runs = load_runs([tmp_path / "plain", tmp_path / "random"])
    stored = random.results["pgd20"]
    assert (stored.draws, stored.eot) == (32, 16)
    assert random.columns["pgd20"].errors == (stored.error,)
    text = write_table(over_seeds(runs), "markdown")
    assert "random: expected accuracy over 32 fresh draws" in text
    assert "plain: expected" not in text
    tests, refused = compare_runs(runs)
    assert (len(tests), refused) == (2, [])
    shown = pair_to_plain(tests[1])
    gap = sum(random.columns["pgd20"].flags[0]) / 60 - sum(plain.columns["pgd20"].flags[0]) / 60
    assert shown["difference"] == pytest.approx(gap)
    assert shown["difference_interval"][0] < gap < shown["difference_interval"][1]
    assert paired_row(tests[1])[1] == "60"
