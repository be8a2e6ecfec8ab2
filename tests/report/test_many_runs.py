"""Pages of many runs: short names, a baseline, colours that do not repeat, sweeps, and parts left out or folded."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import ImageColor

from rattle.report import build_page
from rattle.report.compare import compare_runs, group_by_method
from rattle.report.figures import by_setting
from rattle.report.page import run_colours
from rattle.report.run_data import load_runs
from rattle.report.sections import detailed
from rattle.report.sweeps import Sweep, find_sweep
from support import run_folders as made
from support.command import Command
from support.pages import Page

ETAS = (0.1, 0.2, 0.3, 0.4)


def trained(folder: Path, eta: float = 0.1, seed: int = 0, method: str = "TRADES + 1st + 2nd", **changes: Any) -> Path:
    return made.recipe(folder, seed=seed, method=method, objective={"taylor": {"eta": eta}}, **changes)


def grid(root: Path, methods: Sequence[str], seeds: int) -> list[Path]:
    """Runs of every method, eta and seed, with results that depend on the latter two."""
    runs = []
    for i, (method, eta, seed) in enumerate(product(methods, ETAS, range(seeds))):
        folder = trained(root / f"run{i:02}", eta, seed, f"{method} + 1st + 2nd")
        robust = round(100 * (0.3 + eta / 2)) + 3 * seed
        runs.append(made.result(folder, "pgd20", [1] * robust + [0] * (100 - robust), [1] * 90 + [0] * 10))
    return runs


@pytest.fixture(scope="module")
def runs24(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = grid(tmp_path_factory.mktemp("grid"), ("TRADES", "AT"), 3)
    return [made.landscapes(made.gallery(made.epochs(folder))) for folder in folders]


@pytest.fixture(scope="module")
def page24(runs24: list[Path]) -> Page:
    return Page(build_page(runs24, runs24[0].parent / "page.html"))


def test_a_name_says_what_differs_and_leaves_out_what_all_share(tmp_path: Path) -> None:
    few = load_runs([trained(tmp_path / str(eta), eta) for eta in (0.1, 0.2)])
    assert [run.label for run in few] == ["TRADES + 1st + 2nd, eta 0.1", "TRADES + 1st + 2nd, eta 0.2"]
    many = load_runs([trained(tmp_path / f"{eta}-{seed}", eta, seed) for eta in ETAS for seed in (0, 1)])
    assert [run.label for run in many][:3] == ["eta 0.1, seed 0", "eta 0.1, seed 1", "eta 0.2, seed 0"]
    assert list(group_by_method(many)) == [f"eta {eta}" for eta in ETAS]


def test_settings_that_vary_together_are_named_once_and_too_many_not_at_all(tmp_path: Path) -> None:
    pair = load_runs([trained(tmp_path / "a", 0.1, epochs=5, model="x"), trained(tmp_path / "b", 0.2, epochs=9)])
    assert pair[0].label == "TRADES + 1st + 2nd, model x"
    settings: list[dict[str, Any]] = [dict(zip("pqrs", bits, strict=True)) for bits in product((0, 1), repeat=4)]
    runs = load_runs([trained(tmp_path / f"many{i}", **each) for i, each in enumerate(settings)])
    assert runs[3].label == "TRADES + 1st + 2nd, seed 0, many3"


def test_a_named_baseline_is_compared_with_each_other_run_alone(tmp_path: Path, command: Command) -> None:
    folders = grid(tmp_path, ("TRADES",), 1)[:3]
    path = build_page(folders[:2], baseline=folders[2])
    assert path == folders[0] / "report.html"
    page, runs = Page(path), load_runs([folders[2], *folders[:2]])
    last, *others = [run.label for run in runs]
    assert f"Each is compared with {last}" in page.text
    assert f"{last} baseline" in page.text
    tests, _ = compare_runs(runs, runs[0])
    assert {(test.first, test.second) for test in tests} == {(last, other) for other in others}
    words = ["report", *map(str, folders), "--no-compute", "--out", str(tmp_path / "page.html"), "--baseline"]
    command(*words, str(folders[2]))
    assert "baseline" in Page(tmp_path / "page.html").text
    assert "there is no run folder" in command.refused(*words, str(tmp_path / "nowhere"))


def luminance(colour: str) -> float:
    values = [value / 255 for value in ImageColor.getrgb(colour)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_fifty_colours_do_not_repeat_and_stand_out_in_both_themes() -> None:
    for paper, shown in zip(("#ffffff", "#12161d"), zip(*run_colours(50), strict=True), strict=True):
        assert len(set(shown)) == 50
        for each in shown:
            low, high = sorted((luminance(each), luminance(paper)))
            assert (high + 0.05) / (low + 0.05) >= 3


def test_every_colour_of_many_runs_is_in_both_themes(page24: Page) -> None:
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", json.dumps(page24.figures)))
    style = page24.raw[page24.raw.index("<style>") : page24.raw.index("</style>")]
    assert {f"--run-{i}" for i in range(24)} <= used
    assert all(style.count(f"{name}:") == 2 for name in used)


def test_a_sweep_is_drawn_against_its_setting_with_the_mean_over_seeds(runs24: list[Path], tmp_path: Path) -> None:
    runs = load_runs(runs24)
    robust = [0.4, 0.5, 0.6]
    for run in runs[:3]:
        run.metrics = [{"val_clean": 0.8, "val_robust": robust[run.seed]}]
    sweep = find_sweep(runs)
    assert sweep is not None
    assert list(sweep.series) == ["TRADES + 1st + 2nd", "AT + 1st + 2nd"]
    assert list(sweep.series["TRADES + 1st + 2nd"]) == list(ETAS)
    spec = by_setting(sweep)
    assert spec["layout"]["xaxis"]["title"]["text"] == "objective.taylor.eta"
    assert [trace["line"]["dash"] for trace in spec["data"]] == ["solid", "dash"] * 2
    assert spec["data"][0]["y"][0] == pytest.approx(50)
    assert spec["data"][0]["error_y"]["array"][0] == pytest.approx(10)
    without = find_sweep(load_runs([*runs24[:12], made.epochs(made.recipe(tmp_path / "plain"))]))
    assert without is not None
    assert list(without.series) == ["TRADES + 1st + 2nd"]  # and not the method that has no eta


def test_a_second_setting_becomes_a_series_and_a_third_is_no_plot(tmp_path: Path) -> None:
    def swept(**settings: Sequence[int]) -> Sweep | None:
        runs = []
        for i, (eta, *values) in enumerate(product(ETAS, *settings.values())):
            others: dict[str, Any] = dict(zip(settings, values, strict=True))
            runs.append(made.epochs(trained(tmp_path / f"{len(settings)}-{i}", eta, **others)))
        return find_sweep(load_runs(runs))

    two = swept(batch_size=(8, 16))
    assert two is not None
    assert list(two.series) == ["batch_size 8", "batch_size 16"]
    assert two.series["batch_size 8"][0.1] == [pytest.approx((1 - 0.5 / 3, 0.6 - 0.4 / 3))]
    assert swept(batch_size=(8, 16), epochs=(3, 4)) is None
    assert find_sweep(load_runs([trained(tmp_path / f"pair{eta}", eta) for eta in (0.1, 0.2)])) is None


def test_a_page_of_many_runs_sums_up_seeds_folds_single_runs_and_offers_boxes_to_choose(page24: Page) -> None:
    assert len(page24.raw.encode()) < 8e6
    text = page24.text
    assert "Each is compared with TRADES + 1st + 2nd, eta 0.1, seed 0" in text
    assert text.index("Against TRADES + 1st + 2nd, eta 0.1 ") < text.index("Network by network")
    assert text.index("Accuracy against objective.taylor.eta") < text.index("Over seeds") < text.index("Each of the 24")
    assert {attrs.get("data-panels") for attrs in page24.all("select")} == {"terms", "examples", "classes", "settings"}
    panels = [attrs for attrs in page24.all("div") if (attrs.get("id") or "").startswith("settings-panel")]
    assert len(panels) == 24
    assert sum("hidden" not in attrs for attrs in panels) == 1
    assert "Of 12 of 24 runs" in text
    assert "16 further runs left out of the surfaces" in text


def test_details_are_of_the_first_of_each_setting(runs24: list[Path]) -> None:
    runs = load_runs(runs24)
    assert [run.seed for run in detailed(runs, 8)] == [0] * 8
    assert detailed(runs, 9) == sorted([*detailed(runs, 8), runs[1]], key=lambda run: run.index)
