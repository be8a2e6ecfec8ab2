"""Result files: what is written is read back, and damaged files are named and left out."""

import json
from pathlib import Path

import pytest

from rattle.cli.main import main
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import (
    AttackResult,
    Evaluation,
    StoredResult,
    load_results,
    save_results,
)
from rattle.report.significance import protocol_differences
from support.tiny_runs import digits, linear

SETTINGS = {"kind": "PGD", "threat": {"norm": "linf", "epsilon": 0.1}}


def write(folder: Path, **more: object) -> Path:
    pgd = AttackResult(settings=SETTINGS, flags=[True, False], seconds=1.0)
    rays = AttackResult(settings={}, flags=[True, True], seconds=1.0, distances=[0.2, 0.4])
    save_results(Evaluation(clean=[True, True], attacks={"pgd20": pgd, "rays": rays}, metadata=more), folder)
    return folder


def test_results_are_read_back(tmp_path: Path) -> None:
    found, notes = load_results(write(tmp_path / "results", data="digits"))
    assert notes == []
    assert list(found) == ["pgd20", "rays"]
    pgd = found["pgd20"]
    assert (pgd.attack, pgd.settings, pgd.flags, pgd.clean, pgd.data) == ("pgd20", SETTINGS, (1, 0), (1, 1), "digits")
    assert (pgd.epsilon, found["rays"].epsilon) == (0.1, None)
    assert json.loads((tmp_path / "results" / "rays.json").read_text())["attacks"]["rays"]["adbd"] == pytest.approx(0.3)


def test_a_result_knows_its_images_by_number_and_by_checksum(tmp_path: Path) -> None:
    old = load_results(write(tmp_path / "old", data="digits"))[0]["pgd20"]
    assert (old.index, old.images, old.places) == ((0, 1), (), ("digits:0", "digits:1"))  # the first n
    pgd = AttackResult(settings=SETTINGS, flags=[True, False], seconds=1.0)
    result = Evaluation(clean=[True, False], attacks={"pgd20": pgd}, index=[7, 3], images=["aa", "bb"])
    save_results(result, tmp_path / "new")
    new = load_results(tmp_path / "new")[0]["pgd20"]
    assert (new.index, new.images, new.clean) == ((7, 3), ("aa", "bb"), (1, 0))


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("{", "pgd20.json is damaged and was left out"),
        ("[1]", "pgd20.json does not hold an object and was left out"),
        (
            '{"attacks": {"pgd20": {"flags": [1]}}, "clean_flags": [1, 0]}',
            "results/pgd20.json does not hold one flag per image and was left out",
        ),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_read(content: str, note: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "results")
    (folder / "pgd20.json").write_text(content)
    (folder / "flatness.json").write_text("damaged, but no result")
    (folder / "pgd20-curve.json").write_text('{"curve": {}}')
    found, notes = load_results(folder)
    assert list(found) == ["rays"]
    assert notes == [note]


def stored(**settings: object) -> str:
    settings = {"kind": "PGD", "threat": {"norm": "linf", "epsilon": 0.1}} | settings
    return StoredResult(attack="pgd20", flags=(1, 0), clean=(1, 1), data="digits", settings=settings).protocol


def test_protocols_differ_in_threat_and_every_setting_that_both_record() -> None:
    assert protocol_differences(stored(), stored()) == []
    assert protocol_differences(stored(step_size=0.1), stored(step_size=0.1 + 1e-17)) == []
    assert protocol_differences(stored(step_size=0.1), stored(step_size=0.2)) == ["step_size (0.1; 0.2)"]
    other = stored(threat={"norm": "l2", "epsilon": 0.1})
    assert protocol_differences(stored(), other) == ["threat.norm (linf; l2)"]
    assert protocol_differences(stored(shrinking=False), stored(eps_schedule=False)) == []  # named by other versions
    one, two = ({"threat": {"epsilon": epsilon}} for epsilon in (0.2, 0.3))  # a transfer has its threat inside
    assert protocol_differences(stored(attack=one), stored(attack=two)) == ["attack.threat.epsilon (0.2; 0.3)"]


def test_an_attack_that_is_not_known_or_has_other_parts_is_another_protocol() -> None:
    unknown = StoredResult(attack="pgd20", flags=(1, 0), clean=(1, 1), data="digits", settings={}).protocol
    assert "threat.epsilon (none; 0.1)" in protocol_differences(unknown, stored())
    one, two = ({part: {"kind": "PGD"} for part in parts} for parts in ("a", "ab"))
    assert protocol_differences(stored(components=one), stored(components=two)) == ["components.b.kind (none; PGD)"]


def test_the_worst_class_stands_beside_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, x, y = digits()
    result = evaluate(linear(), x, y, "fgsm", epsilon=0.05, out=tmp_path / "results")
    shares = []
    for label in range(10):
        flags = [flag for flag, own in zip(result.clean, y.tolist(), strict=True) if own == label]
        shares.append(sum(flags) / len(flags))
    worst = f"{100 * min(shares):.1f}"
    assert f"worst class: clean {worst} % [" in str(result)
    assert main(["table", str(tmp_path)]) == 0
    assert f"Worst class, %: {tmp_path.name}: Clean {worst} [" in capsys.readouterr().out
    assert evaluate(linear(), x[:30], y[:30], "fgsm", epsilon=0.05).worst_classes() == ""  # a few images of each


def test_a_result_is_short_in_a_console_and_a_table_in_a_notebook() -> None:
    attack = AttackResult(settings={}, flags=[True, False] * 500, seconds=1.0)
    result = Evaluation(clean=[True] * 1000, attacks={"pgd<20": attack}, warnings=("a & b",))
    assert repr(attack) == "AttackResult(50.0 % robust, n 1000)"
    assert repr(result) == "Evaluation(clean 100.0 %, pgd<20 50.0 %, n 1000)"
    html = result._repr_html_()
    assert [text in html for text in ("pgd&lt;20", "[46.9, 53.1]", "a &amp; b")] == [True] * 3
