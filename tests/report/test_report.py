"""The report page: complete, clear about what is missing, self-contained, and safe against HTML in names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from rattle.errors import RattleError
from rattle.paper import tables as paper
from rattle.report import build_page
from rattle.report.compare import compare_runs, published_points
from rattle.report.figures import by_epsilon, confusion_counts, on_one_plane, terms
from rattle.report.page import for_script
from rattle.report.run_data import RunData, load_runs
from rattle.report.thumbnails import enlargement_factor
from support import run_folders as made
from support.pages import Page

HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Page:
    root = tmp_path_factory.mktemp("runs")
    first = made.whole(root / "a", right=0.4, steepness=2.0)
    second = made.whole(root / "b", right=0.7, method="TRADES + 1st + 2nd")
    return Page(build_page([first, second], root / "page.html"))


def test_a_page_of_two_runs_has_every_section_and_says_nothing_is_missing(two: Page) -> None:
    ids = {attrs.get("id") for _, attrs in two.elements}
    sections = "results comparison training trade-off epsilon examples classes landscape cost settings"
    assert set(sections.split()) <= ids
    assert not [attrs for attrs in two.all("p") if attrs.get("class") == "missing"]
    assert "TRADES beside TRADES + 1st + 2nd" in two.text


def test_every_figure_has_a_place_a_description_and_a_specification_plotly_accepts(two: Page) -> None:
    import plotly.graph_objects as go

    places = [attrs for attrs in two.all("div") if "data-figure" in attrs]
    assert sorted(int(attrs["data-figure"] or -1) for attrs in places) == list(range(len(two.figures)))
    assert all(len(attrs.get("aria-label") or "") > 20 for attrs in places)
    for spec in two.figures:
        plain = re.sub(r'"var\(--[a-z0-9-]+\)"', '"#123456"', json.dumps(spec))
        shown = json.loads(plain)
        assert go.Figure(data=shown["data"], layout=shown["layout"]).data


def test_the_page_is_one_file_that_refers_to_nothing_outside_and_names_images_and_tabs(two: Page) -> None:
    assert len(two.raw.encode()) < 8e6
    addresses = [value for _, attrs in two.elements for key, value in attrs.items() if key in ("src", "href")]
    assert all(value is not None and value.startswith(("data:", "#")) for value in addresses)
    policy = next(attrs for attrs in two.all("meta") if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy["content"] or "")
    assert "script-src 'sha256-" in (policy["content"] or "")
    assert all((attrs.get("alt") or "").strip() for attrs in two.all("img"))
    panels = [attrs for attrs in two.all("div") if attrs.get("role") == "tabpanel"]
    tabs = [attrs for attrs in two.all("button") if attrs.get("role") == "tab"]
    assert {attrs["id"]: attrs["aria-labelledby"] for attrs in panels} == {
        attrs["aria-controls"]: attrs["id"] for attrs in tabs
    }
    assert len(tabs) >= 8


def test_headline_figures_are_the_flags_means_with_wilsons_interval(two: Page) -> None:
    assert "40.0 33.5 to 46.9 n 200" in two.text
    assert "95.0 91.0 to 97.3 n 200" in two.text


def test_a_clear_difference_is_named_and_noise_or_another_threat_is_not(tmp_path: Path) -> None:
    first, second, third = (made.recipe(tmp_path / str(seed), seed=seed) for seed in (0, 1, 2))
    made.result(first, "pgd20", [1] * 50 + [0] * 50, [1] * 99 + [0])
    made.result(second, "pgd20", [1] * 70 + [0] * 30, [0] + [1] * 99)
    made.result(third, "pgd20", [1] * 70 + [0] * 30, [1] * 100, epsilon=0.1)
    found, refused = compare_runs(load_runs([first, second, third]))
    assert [(test.attack, test.conclusion) for test in found] == [
        ("clean", "not distinguishable"),
        ("pgd20", "TRADES, seed 1 is better"),
        ("clean", "not distinguishable"),
        ("clean", "not distinguishable"),
    ]
    assert refused[0] == "TRADES, seed 0 and TRADES, seed 2 (PGD-20): they differ in threat.epsilon (0.2; 0.1)"
    assert len(refused) == 2


def test_html_in_class_names_recipe_names_and_folders_stays_text(tmp_path: Path) -> None:
    folder = made.whole(tmp_path / "<b>run<b>", name=HOSTILE, method=HOSTILE)
    made.gallery(folder, classes=(HOSTILE, "<a href='javascript:alert(1)'>x</a>", "%{x}&amp;"))
    (folder / "environment.json").write_text(json.dumps({"device": HOSTILE}))
    page = Page(build_page([folder], tmp_path / "page.html"))
    assert len(page.all("script")) == 3
    assert not page.all("b")
    assert not [attrs for _, attrs in page.elements if any(key.startswith("on") for key in attrs)]
    assert HOSTILE in page.text
    shown = json.dumps(page.figures)
    assert "<script" not in shown
    assert "<a href" not in shown
    assert "&lt;a href" in shown


def test_json_inside_a_script_cannot_end_it() -> None:
    text = for_script({"a": "</script><!--&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028"}
    assert for_script([float("nan"), {"a": float("inf")}, 1.5]) == '[null,{"a":null},1.5]'  # a gap in a curve


def test_a_run_with_a_recipe_alone_gives_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    page = Page(build_page([made.recipe(tmp_path / "bare")]))
    for words in ("has not been evaluated", "No epoch has been logged", "no landscape", "has no gallery"):
        assert words in page.text
    assert page.figures == []


def test_a_broken_line_is_named_by_its_number_and_no_number_leaves_a_gap(tmp_path: Path) -> None:
    folder = made.epochs(made.recipe(tmp_path / "short"), n=2)
    lines = (folder / "metrics.jsonl").read_text().replace('"loss": 1.0', '"loss": NaN')
    lines = lines.replace('"val_clean": 0.75', '"val_clean": "high"')
    (folder / "metrics.jsonl").write_text(lines + '{"epoch": 3, "loss": \n[1]\n')
    page = Page(build_page([folder]))
    assert "metrics.jsonl: broken lines are left out (3, 4)" in page.text
    assert page.figures[1]["data"][0]["y"][1] is None


@pytest.mark.parametrize("damage", [b"", b"no zip", None])
def test_damaged_results_are_left_out_with_a_note(tmp_path: Path, damage: bytes | None) -> None:
    folder = made.whole(tmp_path / "damaged")
    if damage is None:
        np.savez(folder / "results" / "gallery.npz", kind="Gallery", y=np.array([{}], dtype=object))
    else:
        (folder / "results" / "gallery.npz").write_bytes(damage)
    (folder / "results" / "pgd20.json").write_text('{"attacks": {"pgd20": {"flags": [1]}}, "clean_flags": [1, 1]}')
    (folder / "results" / "flatness.json").write_text("{")
    page = Page(build_page([folder]))
    assert "gallery.npz is damaged or of another version and was left out" in page.text
    assert "pgd20.json does not hold one flag per image and was left out" in page.text
    assert "flatness.json is damaged and was left out" in page.text


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="there is no run folder"):
        build_page([tmp_path / "nowhere"])
    with pytest.raises(RattleError, match=r"it has no recipe\.yaml"):
        build_page([tmp_path])
    with pytest.raises(RattleError, match="at least one"):
        build_page([])


def test_the_curve_over_epsilon_is_the_flags_mean_and_the_confusion_matrix_counts_every_image(tmp_path: Path) -> None:
    (run,) = load_runs([made.gallery(made.recipe(tmp_path / "a"))])
    assert run.gallery is not None
    curve, counts = by_epsilon([run])["data"][0]["y"], confusion_counts(run.gallery)
    assert curve == pytest.approx(100 * run.gallery.robust.mean(1))
    assert counts.sum() == 30
    assert counts.trace() == (run.gallery.y == run.gallery.adversarial_predicted).sum()


def test_surfaces_over_other_planes_are_not_called_comparable(tmp_path: Path) -> None:
    first, second = (made.landscapes(made.recipe(tmp_path / n), sign=s) for n, s in (("a", 1), ("b", -1)))
    assert on_one_plane(load_runs([first]))
    assert not on_one_plane(load_runs([first, second]))
    assert "cannot be compared" in Page(build_page([first, second])).text


def test_the_surfaces_of_a_panel_share_one_loss_scale(two: Page) -> None:
    scenes = [spec["layout"]["scene"] for spec in two.figures if "scene" in spec["layout"]]
    ranges = [scene["zaxis"]["range"] for scene in scenes]
    assert len(ranges) == 8
    assert ranges[::2] == ranges[1::2]  # the surfaces of the two runs stand beside each other


def test_the_papers_points_come_with_the_recipe_they_belong_to(tmp_path: Path) -> None:
    folder = made.whole(tmp_path / "a", name="cifar10-linf-preact18-trades-2nd")
    made.gallery(folder, overrides="epochs 200 -> 3")
    points = published_points(load_runs([folder]), "pgd20", paper.published)
    assert points
    assert all(point.paper and point.label.startswith("paper, Table") for point in points)
    page = Page(build_page([folder], published=paper.published))
    assert "Open diamonds" in page.text
    assert "is not the published recipe" in page.text
    assert published_points(load_runs([made.recipe(tmp_path / "b")]), "pgd20", paper.published) == []


@pytest.mark.parametrize(("delta", "factor"), [(8 / 255, 10), (-0.2, 2.5), (0, 10)])
def test_perturbations_are_enlarged_ten_times_unless_that_would_leave_the_picture(delta: float, factor: float) -> None:
    assert enlargement_factor(np.full((1, 1, 2, 2), delta)) == factor


def test_a_run_that_is_named_twice_gets_two_labels(tmp_path: Path) -> None:
    runs = load_runs([made.recipe(tmp_path / "a")] * 2)
    assert [run.label for run in runs] == [f"TRADES, seed 0, a, {tmp_path / 'a'}, ({i})" for i in (1, 2)]


def test_the_terms_of_a_loss_leave_out_accuracies_and_ratios() -> None:
    entry = {"epoch": 1, "step": 9, "lr": 0.1, "loss": 2.0, "clean": 1.5, "first": 0.5, "unused": None}
    run = RunData(folder=Path(), metrics=[entry | {"val_clean": 0.9, "first_over_zeroth": 0.1}])
    assert terms(run) == ["clean", "first"]
