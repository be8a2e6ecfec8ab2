"""Expected calibration error on clean and attacked images, from confidences that evaluation stores."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rattle.attacks.registry import get_attack
from rattle.evaluation.cache import ResultCache
from rattle.evaluation.calibration import BINS, calibration
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import load_results
from rattle.inputs import to_float
from rattle.report.figures import reliability
from rattle.report.page import build_page
from rattle.report.run_data import load_runs
from rattle.runs.progress import Interrupted
from rattle.stats import absolute_sum_interval
from rattle.threat import Threat
from support.command import Command
from support.tiny_runs import digits, linear

THREAT = Threat(epsilon=0.05)


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    _, _, x, y = digits()
    return x[:n], y[:n]


def test_the_error_is_the_mean_gap_of_15_bins_weighted_by_images() -> None:
    generator = np.random.default_rng(0)
    sure = generator.random(400)
    right = generator.random(400) < sure**2
    expected = 0.0
    for b in range(BINS):
        inside = (sure >= b / BINS) & (sure < (b + 1) / BINS)
        expected += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    found = calibration(tuple(sure.tolist()), tuple(right.tolist()))
    assert found is not None
    assert found.error == pytest.approx(expected)
    assert (sum(found.sizes), len(found.sizes)) == (400, BINS)
    assert found.interval.low < found.error < found.interval.high
    assert calibration((1.0,), (1,)).error == 0  # the last bin holds its upper end
    assert calibration((), ()) is None


CASES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {  # accuracy at a confidence, true error
    "calibrated": (lambda sure: sure, 0.0),
    "too sure by 3 points": (lambda sure: sure - 0.03, 0.03),
    "attacked": (lambda sure: 0.3 * sure, 0.7 * 0.55),
}


@pytest.mark.parametrize("n", [100, 400])
@pytest.mark.parametrize("case", CASES)
def test_the_interval_holds_the_true_error_in_95_of_100_evaluations(
    case: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rattle.stats.RESAMPLES", 200)
    accuracy, truth = CASES[case]
    generator, held = np.random.default_rng(0), 0
    for _ in range(200):
        sure = 0.1 + 0.9 * generator.beta(3, 3, n)
        right = generator.random(n) < accuracy(sure)
        bins = np.minimum((sure * BINS).astype(int), BINS - 1)
        interval = absolute_sum_interval(right - sure, bins)
        held += interval.low <= truth <= interval.high
    assert held / 200 >= 0.92  # 95 % less two standard errors


def test_the_stored_confidence_is_the_softmax_at_the_point_that_was_verified(tmp_path: Path) -> None:
    x, y = images(60)
    result = evaluate(linear(), x, y, "fgsm", threat=THREAT, out=tmp_path, batch_size=16)
    clean = linear()(to_float(x)).softmax(1).amax(1)
    assert result.confidence == pytest.approx(clean.tolist(), abs=1e-4)
    x_adv = get_attack("fgsm", THREAT)(linear(), to_float(x), y)
    attacked = torch.where(torch.tensor(result.clean), linear()(x_adv).softmax(1).amax(1), clean)  # only right ones
    assert result.attacks["fgsm"].confidence == pytest.approx(attacked.tolist(), abs=1e-4)
    stored = load_results(tmp_path)[0]["fgsm"]
    assert stored.confidence == tuple(result.attacks["fgsm"].confidence)
    assert stored.clean_confidence == tuple(result.confidence)
    plain = json.loads((tmp_path / "fgsm.json").read_text())
    low, high = plain["attacks"]["fgsm"]["calibration"]["interval"]
    assert low <= plain["attacks"]["fgsm"]["calibration"]["error"] <= high
    assert plain["clean_calibration"]["bins"] == BINS


def test_a_point_outside_the_ball_counts_as_the_image_itself() -> None:
    class Far:
        threat = THREAT

        def __call__(self, model: object, x: torch.Tensor, y: object, *, generator: object = None) -> torch.Tensor:
            return 1 - x

    result = evaluate(linear(), *images(20), {"far": Far()})
    assert result.attacks["far"].confidence == result.confidence


def test_an_ensemble_and_a_resumed_evaluation_have_the_same_confidences(tmp_path: Path) -> None:
    x, y = images(40)
    call = {"threat": THREAT, "batch_size": 10}
    whole = evaluate(linear(), x, y, "smoke-ensemble", **call)
    calls: list[int] = []
    with pytest.raises(Interrupted):
        evaluate(
            linear(), x, y, "smoke-ensemble", out=tmp_path, stop=lambda: len(calls) == 1 or calls.append(1), **call
        )
    again = evaluate(linear(), x, y, "smoke-ensemble", out=tmp_path, **call)
    found, expected = again.attacks["smoke-ensemble"], whole.attacks["smoke-ensemble"]
    assert (found.confidence, found.flags) == (expected.confidence, expected.flags)
    assert len(found.confidence) == 40


def test_batches_that_an_earlier_version_left_have_flags_and_no_confidences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = images(20)
    whole = evaluate(linear(), x, y, "fgsm", threat=THREAT, out=tmp_path)
    add = ResultCache.add

    def older(self: ResultCache, first: int, row: dict, x_adv: torch.Tensor | None = None) -> None:
        row.pop("confidence")
        add(self, first, row, x_adv)

    monkeypatch.setattr(ResultCache, "add", older)
    result = evaluate(linear(), x, y, "fgsm", threat=THREAT, out=tmp_path)
    assert (result.attacks["fgsm"].confidence, result.attacks["fgsm"].flags) == ([], whole.attacks["fgsm"].flags)
    assert "calibration" not in json.loads((tmp_path / "fgsm.json").read_text())["attacks"]["fgsm"]


def test_files_without_confidences_are_read_and_damaged_ones_left_out(tmp_path: Path) -> None:
    evaluate(linear(), *images(30), "fgsm", threat=THREAT, out=tmp_path)
    path = tmp_path / "fgsm.json"
    plain = json.loads(path.read_text())
    del plain["clean_confidence"], plain["attacks"]["fgsm"]["confidence"]
    path.write_text(json.dumps(plain))
    columns = load_runs([tmp_path])[0].columns
    assert (columns["clean"].calibrations, columns["fgsm"].calibrations) == ([], [])
    for damaged in ([0.5] * 29, [2.0] * 30, ["a"] * 30):
        plain["attacks"]["fgsm"]["confidence"] = damaged
        path.write_text(json.dumps(plain))
        assert load_results(tmp_path)[0] == {}


def test_attacks_on_some_of_the_images_have_no_calibration() -> None:
    result = evaluate(linear(), *images(20), "fgsm", threat=THREAT, mask=[True, False] * 10)
    assert result.attacks["fgsm"].confidence == []
    assert result.calibration("fgsm") is None


def test_the_page_and_the_comparison_show_worst_classes_and_reliability(tmp_path: Path, command: Command) -> None:
    for name, steps in (("a", 1), ("b", 2)):
        x, y = digits()[2:]
        evaluate(linear(), x, y, get_attack(f"pgd{steps}", THREAT), out=tmp_path / name)
    runs = load_runs([tmp_path / "a", tmp_path / "b"])
    (found,) = runs[0].columns["pgd"].calibrations
    diagonal, first, _ = reliability(runs, "pgd")["data"]
    assert diagonal["x"] == diagonal["y"] == [0, 1]
    assert (first["x"], first["y"]) == (list(found.confidence), list(found.accuracy))
    worst = runs[0].columns["clean"].worst_classes[0]
    page = build_page([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html").read_text(encoding="utf-8")
    section = page[page.index('<section id="beyond">') :]
    for figure in (worst.interval.low, worst.interval.high, found.error, found.interval.low):
        assert f"{100 * figure:.1f}" in section
    compared = json.loads(command("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"))
    clean, attacked = compared["models"][0]["beyond"]
    assert clean["worst_class"]["accuracy"] == worst.accuracy
    assert attacked["calibration"]["error"] == found.error
