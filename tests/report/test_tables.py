"""Tables of runs: means over seeds, bold only for what is significant, and text that survives its format."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from rattle import cli
from rattle.cli.console import print_table
from rattle.errors import RattleError
from rattle.report.compare import over_seeds
from rattle.report.run_data import load_runs
from rattle.report.tables import compare, write_table
from rattle.stats import Sample, differ, difference, holm, welch
from support import run_folders as made


def sample(*shares: float, n: int = 100, seeds: tuple[int, ...] | None = None, protocol: str = "") -> Sample:
    flags = tuple(tuple(int(i < round(share * n)) for i in range(n)) for share in shares)
    return Sample(seeds=seeds or tuple(range(len(shares))), flags=flags, protocol=protocol)


def test_a_row_is_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    runs = [made.whole(tmp_path / str(seed), seed=seed, right=0.4 + 0.1 * seed) for seed in range(3)]
    table = over_seeds(load_runs(runs))
    assert list(table.rows) == ["TRADES"]
    assert table.columns == ("clean", "pgd20", "cw20")
    cell = table.rows["TRADES"][1]
    assert (cell.n, cell.mean, cell.deviation) == (3, pytest.approx(0.5), pytest.approx(0.1))
    assert "| TRADES | 3 | 95.00 ± 0.00 | 50.00 ± 10.00 |" in write_table(table, "markdown")


def test_one_seed_shows_no_deviation_and_a_column_nobody_ran_a_dash(tmp_path: Path) -> None:
    first, second = made.recipe(tmp_path / "a"), made.recipe(tmp_path / "b", awp={"gamma": 0.005})
    made.verdict(first, "pgd20", [1, 0], [1, 1])
    made.verdict(second, "cw20", [1, 0], [1, 1])
    text = write_table(over_seeds(load_runs([first, second])), "markdown")
    assert "| TRADES | 1 | 100.00 | 50.00 | - |" in text
    assert "| TRADES-AWP | 1 | 100.00 | - | 50.00 |" in text


def test_the_best_is_bold_only_where_the_difference_is_significant() -> None:
    clear = compare({"a": {"pgd20": sample(0.4)}, "b": {"pgd20": sample(0.7)}})
    assert [row[0].best for row in clear.rows.values()] == [False, True]
    assert "**70.00**" in write_table(clear, "markdown")
    assert r"\textbf{70.00}" in write_table(clear, "latex")
    noise = compare({"a": {"pgd20": sample(0.50)}, "b": {"pgd20": sample(0.52)}})
    assert not any(row[0].best for row in noise.rows.values())
    third = compare({"a": {"pgd20": sample(0.4)}, "b": {"pgd20": sample(0.7)}, "c": {"pgd20": sample(0.69)}})
    assert not any(row[0].best for row in third.rows.values())


def test_seeds_decide_where_there_are_several() -> None:
    assert differ(sample(0.40, 0.41, 0.42), sample(0.50, 0.51, 0.52))
    assert not differ(sample(0.40, 0.50, 0.60), sample(0.45, 0.50, 0.58))
    assert not differ(sample(0.40), sample(0.90, 0.91))
    assert differ(sample(0.40, 0.41, 0.42), sample(0.50, 0.51, 0.52, seeds=(7, 8, 9)))
    assert not differ(sample(0.1, protocol="x"), sample(0.9, protocol="y"))
    assert not differ(sample(0.1), sample(0.9, n=50))


def test_a_difference_is_paired_by_images_or_by_the_seeds_that_both_have() -> None:
    from scipy.stats import ttest_rel

    one = difference(sample(0.7), sample(0.4))
    assert one is not None
    assert (one.test, one.n, one.mean) == ("McNemar's test over images", 1, pytest.approx(0.3))
    assert one.interval.low < one.mean < one.interval.high
    a, b = (0.50, 0.55, 0.57), (0.45, 0.44, 0.52)
    several = difference(sample(*a, 0.9), sample(*b))
    assert several is not None
    assert (several.test, several.n) == ("Student's t over seeds", 3)
    assert several.p == pytest.approx(ttest_rel(a, b).pvalue)
    near, far = (Sample(seeds=(0,), flags=(values,)) for values in ((0.1, 0.2, 0.0, 0.3), (0.2, 0.4, 0.0, 0.35)))
    distances = difference(far, near)
    assert distances is not None
    assert distances.test == "Student's t over images"
    assert distances.p == pytest.approx(ttest_rel(far.flags[0], near.flags[0]).pvalue)


def test_what_was_not_measured_alike_has_no_difference() -> None:
    assert difference(sample(0.5, protocol="x"), sample(0.5, protocol="y")) is None
    assert difference(sample(0.5, seeds=(0,)), sample(0.5, seeds=(1,))) is None
    same, constant = difference(sample(0.5, 0.6), sample(0.5, 0.6)), difference(sample(0.6, 0.7), sample(0.5, 0.6))
    assert same is not None
    assert same.p == 1
    assert constant is not None
    assert constant.p == pytest.approx(0, abs=1e-6)


def test_welch_agrees_with_scipy_away_from_the_border() -> None:
    from scipy.stats import ttest_ind

    for a, b in (([1.0, 2.0, 3.0], [2.0, 3.0, 4.5]), ([1.0, 1.1, 1.2], [2.0, 2.6, 2.3]), ([0.0, 5.0], [1.0, 2.0])):
        assert welch(a, b) == (ttest_ind(a, b, equal_var=False).pvalue < 0.05)
    assert welch([1.0, 1.0], [2.0, 2.0])


def test_holm_never_lowers_a_p_value_and_keeps_their_order() -> None:
    assert holm([0.5, 0.01, 0.02]) == [0.5, 0.03, 0.04]
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_names_are_escaped_in_every_format() -> None:
    table = compare({"a_b | 50% & <i>": {"my_attack": sample(0.5)}, "=1+1": {"my_attack": sample(0.5)}})
    assert r"a\_b \| 50% & &lt;i>" in write_table(table, "markdown")
    assert r"a\_b | 50\% \& <i>" in write_table(table, "latex")
    rows = list(csv.reader(io.StringIO(write_table(table, "csv"))))
    assert rows[0] == ["method", "seeds", "my_attack_mean", "my_attack_deviation", "my_attack_best"]
    assert rows[1] == ["a_b | 50% & <i>", "1", "0.500000", "", "0"]
    assert rows[2][0] == "'=1+1"


def test_a_latex_table_uses_booktabs_and_has_a_cell_for_every_column() -> None:
    text = write_table(compare({"a": {"clean": sample(0.9, 0.8), "pgd20": sample(0.4, 0.5)}}), "latex")
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert r"a & 2 & 85.00 $\pm$ 7.07 & 45.00 $\pm$ 7.07 \\" in text


def test_the_verb_prints_or_writes_and_refuses_runs_without_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(made.whole(tmp_path / "a"))
    assert cli.main(["table", run, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("method,seeds,clean_mean")
    assert cli.main(["table", run, "--format", "latex", "--out", str(tmp_path / "t.tex")]) == 0
    assert (tmp_path / "t.tex").read_text().endswith("\\end{tabular}\n")
    assert cli.main(["table", str(made.recipe(tmp_path / "bare"))]) == 2
    assert "none of these runs has been evaluated" in capsys.readouterr().err
    with pytest.raises(RattleError):
        compare({})


def test_a_printed_table_never_cuts_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    wide = "x" * 150
    print_table(["name", "value"], [[wide, "50.0 [45.0, 55.0]"], ["[red]", "1"]], title="[title]")
    out = capsys.readouterr().out
    assert wide in out
    assert "50.0 [45.0, 55.0]" in out
    assert "[red]" in out
    assert "[title]" in out
