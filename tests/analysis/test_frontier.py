"""Frontiers: methods at equal clean accuracy, the coverage of the intervals, and the line between two models."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rattle
from rattle.analysis.frontier import Curve, Frontier, Point, compare_curves
from rattle.analysis.trace import gather_points, jobs_of, plan_frontier
from rattle.analysis.weight_line import Line, barriers, frontier_between
from rattle.errors import RattleError
from rattle.evaluation.samples import Sample
from rattle.models.registry import BUILDERS, register_model
from rattle.report.page import build_page
from rattle.runs.progress import NullConsole
from support import run_folders
from support.training import tiny

CLEAN, ROBUST = (0.5, 0.6, 0.7), (0.40, 0.35, 0.25)  # a frontier: more clean accuracy, less robustness


def sample(flags: np.ndarray) -> Sample:
    """From flags [seeds, images]."""
    return Sample(seeds=tuple(range(len(flags))), flags=tuple(map(tuple, flags.astype(int).tolist())))


def simulated(
    generator: np.random.Generator, *, seeds: int, images: int, shift: float = 0.0, spread: float = 0.01
) -> tuple[Curve, Curve]:
    """Two curves of which one is `shift` above the other. Seeds differ, images are hard or easy for all alike."""
    hardness = generator.uniform(size=images)
    curves = []
    for name, above in (("first", shift), ("second", 0.0)):
        points = []
        for value, (clean, robust) in enumerate(zip(CLEAN, ROBUST, strict=True)):
            luck = generator.normal(0, spread, (seeds, 2))
            flags = []
            for column, mean in enumerate((clean, robust + above)):
                noise = generator.normal(0, 0.1, (seeds, images))
                flags.append(hardness + noise < mean + luck[:, [column]])
            points.append(Point(value=value, clean={"pgd20": sample(flags[0])}, robust={"pgd20": sample(flags[1])}))
        curves.append(Curve(method=name, setting="inv_lambda", points=tuple(points)))
    return curves[0], curves[1]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_the_interval_of_a_difference_covers_the_truth(seeds: int) -> None:
    generator, inside, trials = np.random.default_rng(seeds), 0, 200
    for _ in range(trials):
        first, second = simulated(generator, seeds=seeds, images=300, shift=0.02, spread=0.0 if seeds == 1 else 0.01)
        gap = compare_curves(first, second, "pgd20")
        inside += gap.interval.low <= 0.02 <= gap.interval.high
    assert inside / trials >= 0.92  # 95 % less two standard errors of 200 trials


def test_a_frontier_above_another_is_found_and_the_misled_attack_named() -> None:
    first, second = simulated(np.random.default_rng(0), seeds=5, images=2000, shift=0.05, spread=0.002)
    same = {"autoattack": [point.robust["pgd20"] for point in second.points]}
    curves = []
    for curve in (second, first):
        points = []
        for point, flags in zip(curve.points, same["autoattack"], strict=True):
            clean = second.points[int(point.value)].clean["pgd20"]
            robust = {"pgd20": point.robust["pgd20"], "autoattack": flags}
            points.append(replace(point, clean={"pgd20": clean, "autoattack": clean}, robust=robust))
        curves.append(replace(curve, points=tuple(points)))
    frontier = Frontier(curves=tuple(curves), threat="linf 8/255")
    by_attack = {gap.attack: gap for gap in frontier.compare()}
    assert by_attack["pgd20"].verdict == "above"
    assert by_attack["pgd20"].mean == pytest.approx(0.05, abs=0.01)
    assert by_attack["autoattack"].verdict == "equal"
    assert len(by_attack["pgd20"].at) == 3
    assert "pgd20 is misled" in frontier.summary()
    assert frontier.compare(equal="robust")[0].mean > 0


def test_points_are_chosen_by_held_out_images() -> None:
    curve, _ = simulated(np.random.default_rng(0), seeds=2, images=100)
    held_out = [np.array([[0.5, 0.4], [0.5, 0.42]]), np.array([[0.61, 0.35], [0.6, 0.36]]), np.array([[0.7, 0.2]] * 2)]
    points = [
        replace(point, held_out=found, runs=("a", "b")) for point, found in zip(curve.points, held_out, strict=True)
    ]
    frontier = Frontier(curves=(replace(curve, points=tuple(points)),))
    chosen = frontier.choose(clean_at_least=60)
    assert (chosen.value, chosen.run) == ("1", "b")
    assert set(chosen.test) == {"clean", "pgd20"}
    assert frontier.choose(robust_at_least=20).value == "2"
    with pytest.raises(RattleError, match="clean"):
        frontier.choose(clean_at_least=90)


def test_what_compares_nothing_is_refused(tmp_path: Path) -> None:
    first, second = simulated(np.random.default_rng(0), seeds=2, images=50)
    with pytest.raises(RattleError, match="one point"):
        compare_curves(replace(first, points=first.points[:1]), second, "pgd20")
    with pytest.raises(RattleError, match="no common range"):
        compare_curves(replace(first, points=first.points[:2]), replace(second, points=second.points[2:] * 2), "pgd20")
    with pytest.raises(RattleError, match="same images"):
        compare_curves(first, simulated(np.random.default_rng(0), seeds=2, images=60)[1], "pgd20")
    trades = rattle.get_recipe("digits-linf-cnn-trades")
    other = rattle.get_recipe("digits-l2-cnn-trades")
    for recipes, options, word in (
        ([trades, other], {}, "threat"),
        ([rattle.get_recipe("digits-linf-cnn-standard")], {}, "--setting"),
        ([trades], {"points": 1}, "points"),
        ([trades], {"seeds": (0, 0)}, "seeds"),
        ([trades], {"settings": {"objective.inv_lambda": [3.0]}}, "one value"),
    ):
        with pytest.raises(RattleError, match=word):
            plan_frontier(recipes, **{"seeds": (0,), "points": 3, "settings": {}, "out": tmp_path} | options)


def test_a_training_epsilon_keeps_the_proportion_of_the_inner_step(tmp_path: Path) -> None:
    base = rattle.get_recipe("digits-linf-cnn-at")
    ((_, setting, jobs),) = plan_frontier([base], (0,), 3, {}, tmp_path)
    assert setting == "attack.threat.epsilon"
    for (job,) in jobs.values():
        attack = job.recipe.attack
        assert attack.step_size / attack.threat.epsilon == pytest.approx(
            base.attack.step_size / base.attack.threat.epsilon
        )
    assert (
        list(jobs) == [job.recipe.attack.threat.epsilon for (job,) in jobs.values()] == pytest.approx([0.1, 0.2, 0.3])
    )


@pytest.mark.process
def test_a_frontier_is_trained_attacked_and_extended(tmp_path: Path) -> None:
    recipe, out = tiny("trades", epochs=1), tmp_path / "frontier"
    settings = {"attacks": ["fgsm"], "n": 40, "out": out, "quiet": True}
    found = rattle.frontier(recipe, seeds=[0], points=2, **settings)
    assert [point.value for point in found.curves[0].points] == [3, 6]
    runs = {run: Path(run, "metrics.jsonl").stat().st_mtime_ns for run in found.curves[0].points[0].runs}
    more = rattle.frontier(recipe, seeds=[0], settings={"objective.inv_lambda": [3, 6, 12]}, **settings)
    assert len(more.curves[0].points) == 3
    for run, changed in runs.items():
        assert Path(run, "metrics.jsonl").stat().st_mtime_ns == changed
    plain = json.loads((out / "frontier.json").read_text())
    assert [point["value"] for point in plain["curves"][0]["points"]] == [3, 6, 12]
    assert plain["curves"][0]["points"][0]["attacks"]["fgsm"]["n"] == 40
    assert (out / "frontier.png").read_bytes()[:4] == b"\x89PNG"


class NoisyLogits(nn.Sequential):
    """A network whose logits are random in every pass."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return z + torch.randn_like(z)


def test_a_random_network_has_rates_on_a_frontier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUILDERS, "known", dict(BUILDERS.entries))
    register_model("noisy", NoisyLogits)
    base = tiny("trades", epochs=1, model="noisy", width=None)
    grid = plan_frontier([base], (0,), 2, {}, tmp_path)
    for job in jobs_of(grid):
        rattle.fit(job.recipe, job.folder, quiet=True)
    found = gather_points(grid, base.attack.threat, ["fgsm"], 40, 1, NullConsole())
    (rates,) = found.curves[0].points[0].clean["fgsm"].flags
    assert any(0 < rate < 1 for rate in rates)


def test_the_page_of_a_frontier_shows_its_runs_and_refuses_a_damaged_file(tmp_path: Path) -> None:
    first, second = simulated(np.random.default_rng(0), seeds=2, images=50)
    Frontier(curves=(second, first), threat="linf 8/255").save(tmp_path)
    run_folders.whole(tmp_path / "second" / "value=1,seed=0")
    run_folders.whole(tmp_path / "first" / "value=1,seed=0", right=0.8)
    page = build_page(tmp_path, tmp_path / "page.html").read_text()
    for words in ("Frontiers over inv_lambda", "first less second", "PGD-20, linf 8/255, n 50, 2 seeds", "value=1"):
        assert words in page
    (tmp_path / "frontier.json").write_text('{"curves": [{"method": 3}], "comparisons": []}')
    with pytest.raises(RattleError, match=r"frontier\.json is damaged"):
        build_page(tmp_path, tmp_path / "page.html")


def test_the_line_between_two_runs_ends_at_them(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        rattle.fit(replace(tiny("trades", epochs=2), seed=seed), tmp_path / name, quiet=True)
    line = Line(tmp_path / "a", tmp_path / "b")
    end = rattle.load(tmp_path / "b").state_dict()
    found = line.at(1.0).state_dict()
    assert all(torch.equal(found[name], end[name]) for name, _ in line.model.named_parameters())
    result = frontier_between(
        tmp_path / "a", tmp_path / "b", points=3, attacks=["fgsm"], n=60, out=tmp_path / "line", save=0.5
    )
    assert [point.value for point in result.curves[0].points] == [0, 0.5, 1]
    saved = rattle.load(tmp_path / "line" / "between-0.5").state_dict()
    middle = line.at(0.5).state_dict()
    assert all(torch.allclose(saved[name], middle[name]) for name in saved)
    rattle.fit(replace(tiny("trades", epochs=1), width=6), tmp_path / "wide", quiet=True)
    with pytest.raises(RattleError, match="no line"):
        Line(tmp_path / "a", tmp_path / "wide")


def test_an_accuracy_below_the_line_of_the_ends_is_a_barrier() -> None:
    points = []
    for t, clean in ((0.0, 0.9), (0.5, 0.6), (1.0, 0.8)):
        flags = {"fgsm": sample(np.arange(10)[None] < 10 * clean)}
        points.append(Point(value=t, clean=flags, robust={"fgsm": sample(np.arange(10)[None] < 5)}))
    (note,) = barriers(Curve(method="line", setting="t", points=tuple(points)), ["fgsm"])
    assert "clean" in note
    assert "25.0" in note
