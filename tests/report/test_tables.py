"""Tables of runs: means over seeds, bold only for what is significant, and text that survives its format."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from rattle.cli import main as cli
from rattle.errors import RattleError
from rattle.report.compare import over_seeds
from rattle.report.run_data import load_runs
from rattle.report.tables import compare, write_table
from support import run_folders as made
from support.command import Command


def test_a_row_is_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    runs = [made.whole(tmp_path / str(seed), seed=seed, right=0.4 + 0.1 * seed) for seed in range(3)]
    table = over_seeds(load_runs(runs))
    assert list(table.rows) == ["TRADES"]
    assert table.columns == ["clean", "pgd20", "cw20"]
    found = table.rows["TRADES"]["pgd20"].summary
    assert (found.n, found.mean, found.deviation) == (3, pytest.approx(0.5), pytest.approx(0.1))
    assert "| TRADES | 3 | 95.00 ± 0.00 | 50.00 ± 10.00 |" in write_table(table, "markdown")


def test_one_seed_shows_no_deviation_and_a_column_nobody_ran_a_dash(tmp_path: Path) -> None:
    first, second = made.recipe(tmp_path / "a"), made.recipe(tmp_path / "b", method="TRADES-AWP")
    made.result(first, "pgd20", [1, 0], [1, 1])
    made.result(second, "cw20", [1, 0], [1, 1])
    text = write_table(over_seeds(load_runs([first, second])), "markdown")
    assert "| TRADES | 1 | 100.00 | 50.00 | - |" in text
    assert "| TRADES-AWP | 1 | 100.00 | - | 50.00 |" in text


@pytest.mark.parametrize(
    ("shares", "best"),
    [((0.4, 0.7), [False, True]), ((0.50, 0.52), [False, False]), ((0.4, 0.7, 0.69), [False] * 3)],
)
def test_the_best_is_bold_only_where_the_difference_is_significant(shares: tuple[float, ...], best: list[bool]) -> None:
    table = compare({str(i): {"pgd20": made.sample(share)} for i, share in enumerate(shares)})
    assert [(method, "pgd20") in table.best for method in table.rows] == best
    assert ("**70.00**" in write_table(table, "markdown")) == any(best)
    assert (r"\textbf{70.00}" in write_table(table, "latex")) == any(best)


def test_names_are_escaped_in_every_format() -> None:
    table = compare({"a_b | 50% & <i>": {"my_attack": made.sample(0.5)}, "=1+1": {"my_attack": made.sample(0.5)}})
    assert r"a\_b \| 50% & &lt;i>" in write_table(table, "markdown")
    assert r"a\_b | 50\% \& <i>" in write_table(table, "latex")
    rows = list(csv.reader(io.StringIO(write_table(table, "csv"))))
    assert rows[0] == ["method", "seeds", "my_attack_mean", "my_attack_deviation", "my_attack_n", "my_attack_best"]
    assert rows[1] == ["a_b | 50% & <i>", "1", "0.500000", "", "100", "0"]
    assert rows[2][0] == "'=1+1"


def test_the_command_prints_or_writes_and_refuses_runs_without_results(tmp_path: Path, command: Command) -> None:
    run = str(made.whole(tmp_path / "a"))
    assert command("table", run, "--format", "csv").startswith("method,seeds,clean_mean")
    assert cli.main(["table", run, "--format", "latex", "--out", str(tmp_path / "t.tex")]) == 0
    assert (tmp_path / "t.tex").read_text().endswith("\\end{tabular}\n")
    assert "none of these runs has been evaluated" in command.refused("table", str(made.recipe(tmp_path / "bare")))
    with pytest.raises(RattleError):
        compare({})


@pytest.mark.process
def test_a_page_and_a_table_of_one_seed_each_do_not_wait_for_scipy_or_torch(tmp_path: Path) -> None:
    folders = [str(made.whole(tmp_path / "a")), str(made.whole(tmp_path / "b", right=0.8, method="TRADES-AWP"))]
    code = (
        "import sys; from rattle.report import build_page, compare, run_data, tables; "
        f"print(tables.write_table(compare.over_seeds(run_data.load_runs({folders})), 'markdown')); "
        "sys.exit(bool({'scipy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "**80.00**" in done.stdout
