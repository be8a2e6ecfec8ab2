"""`rattle paper N`: every table trains, attacks and prints at a tiny scale, resumes, and refuses bad options."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rattle.cli import main as cli
from rattle.errors import RattleError
from rattle.evaluation.samples import Difference, Sample
from rattle.objectives.base import Teacher
from rattle.paper import tables
from rattle.paper.blocks import CHOSEN_ON
from rattle.paper.estimate import epoch_seconds
from rattle.paper.plan import entries, plan_table
from rattle.paper.protocols import CellResult
from rattle.paper.rows import PAPER_DATASETS
from rattle.paper.scales import SCALES, Scale, StepSetup
from rattle.paper.writer import WRITERS, printed_table
from rattle.recipes.catalog import get_recipe
from rattle.runs.paths import Run
from rattle.stats import Interval
from support.command import Command

LEAST = replace(
    SCALES["tiny"],
    models=dict.fromkeys(SCALES["tiny"].models, ("cnn", 2)),
    epochs=1,
    train_size=128,
    n=20,
    autoattack_n=2,
    rays_n=4,
    queries=60,
    cost=StepSetup(model="cnn-slim", width=4, batch=8, steps=2, rounds=1),
)
PUBLISHED_NAMES = ("CIFAR", "SVHN", "ResNet", "WRN", "VGG", "MobileNet")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tables: what one has trained serves the next."""
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(autouse=True)
def least() -> Iterator[None]:
    """The tiny scale as small as it goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "tiny", LEAST)
        yield


def run_paper(out: Path, number: int, *words: str, sure: bool = True) -> int:
    return cli.main(["paper", str(number), "--scale", "tiny", "--out", str(out), *words, *(["--yes"] if sure else [])])


def numbers(out: Path, number: int) -> dict[str, Any]:
    return json.loads((out / f"table-{number}-tiny.json").read_text())


LARGE = (2, 8)  # tables of many rows


@pytest.mark.parametrize("number", [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in range(1, 9)])
def test_every_table_trains_attacks_and_prints_ours_beside_the_papers_in_120_columns(
    number: int, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run_paper(out, number) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 120
    table = tables.table(number)
    assert f"Table {number} of the paper, run at scale tiny" in printed
    assert f"published (paper): {table.title}" in " ".join(printed.split())
    for row in table.rows:
        assert row.method in printed
        assert all(cell.printed in printed.replace(",", "") for cell in row.cells)
    for ending in ("md", "tex", "html"):
        written = (out / f"table-{number}-tiny.{ending}").read_text()
        assert ("ours: generated 32x32 images, cnn-slim (width 4)" if number == 6 else "small CNN (width 2)") in written
    rows = numbers(out, number)["rows"]
    if number == 6:
        assert [row["network"] for row in rows] == ["cnn-slim (width 4)"] * 3 + ["WRN-34-10"] * 3
        assert rows[-1]["time_ratio"] == pytest.approx(2362 / 1666)
        assert rows[0]["time_ratio"] == rows[0]["memory_ratio"] == 1
        assert rows[2]["memory_ratio"] >= 1
        assert all(row["seconds_an_epoch"] > 0 for row in rows)
        return
    for row in rows:
        for cell in row["cells"].values():
            for protocol, ours in cell["ours"].items():
                assert ours["interval"][0] <= ours["mean"] <= ours["interval"][1]
                assert ours["seeds"] == [0]
                assert ours["checkpoints"][0] == ("best" if protocol == "honest" else "epoch-001")


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 8])
def test_blocks_of_ours_name_the_data_and_network_that_ran_and_the_papers_those_it_published(
    number: int, out: Path
) -> None:
    *own, (caption, text) = blocks_of(out, number)
    for title, lines in own:
        assert title.startswith("ours: digits, small CNN (width 2), trained for l")
        assert not any(word in title + lines for word in (*PUBLISHED_NAMES, "AutoAttack"))
    assert caption == f"published (paper): {tables.table(number).title}".replace("_", r"\_")
    assert not any(word in caption + text for word in ("digits", "small CNN", "smoke-ensemble"))
    for row in tables.table(number).rows:
        assert f"| {PAPER_DATASETS[row.dataset]} | {row.architecture} | {row.method}" in text
    for row in numbers(out, number)["rows"]:
        if row["ours"]:
            assert (row["ours"]["data"], row["ours"]["network"]) == ("digits", "small CNN (width 2)")
        assert row["published"]["data"] in PAPER_DATASETS


def blocks_of(out: Path, number: int) -> list[tuple[str, str]]:
    """(caption, lines) of each block, from the Markdown file; the notes below the last one are left out."""
    if not (out / f"table-{number}-tiny.md").exists():
        run_paper(out, number)
    _, *parts = (out / f"table-{number}-tiny.md").read_text().split("\n## ")
    split = (part.partition("\n") for part in parts)
    return [(caption, "\n".join(line for line in text.splitlines() if line[:1] == "|")) for caption, _, text in split]


def test_a_run_stands_once_in_a_block_with_the_rows_it_stands_for(out: Path) -> None:
    (_, own), _ = blocks_of(out, 7)
    assert own.count("| n x seeds | 20 x 1 | 4 x 1 | 4 x 1 |") == 2
    [(_, own), (_, published)] = blocks_of(out, 2)
    firsts = [line.split(" | ")[:2] for line in own.splitlines()[2:] if not line.startswith("|  |")]
    assert ["| 8, 16", "TRADES"] in firsts
    assert ["| 13, 21", "TRADES-AWP+1st+2nd"] in firsts
    others = ["AVMixup", "MART", "AT (rice)", "FAT-TRADES", "TRADES (pang)", "TRADES-S2O-AWP", "LBGAT"]
    assert [method for rows, method in firsts if "," not in rows] == others
    assert len(firsts) - len(others) == 7
    assert len(published.splitlines()) == 2 + 21
    assert "| 16 | CIFAR-100 | WRN-34-10 | Zhang et al. (2019) (0th) | 60.22 |" in published
    assert "| 7 | CIFAR-10 | WRN-70-16 | Gowal et al. (2020) | 85.29 | 58.22 (PGD-40) | - | 57.20 " in published


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 8])
def test_the_widest_cells_of_three_seeds_fit_120_columns(number: int, scale: str, tmp_path: Path) -> None:
    planned = plan_table(number, SCALES[scale], (0, 1, 2), tmp_path)
    change = Difference(mean=-0.1234, interval=Interval(-0.2, -0.1), p=0.0001, test="", n=3)
    flags = tuple((1,) * right + (0,) * (10_000 - right) for right in (4000, 5234, 6468))
    wide = CellResult(sample=Sample(seeds=(0, 1, 2), flags=flags), checkpoints=[])
    far = replace(wide.sample, flags=tuple(tuple(100 * flag for flag in each) for each in flags))
    ours = {"%": replace(wide, difference=change, p_adjusted=0.001), "distance": replace(wide, sample=far)}
    by_key = {entry.key: {cell.column: ours[cell.unit] for cell in entry.row.cells} for entry in planned.entries}
    table = printed_table(planned, "", dict.fromkeys(CHOSEN_ON, by_key))
    assert any("52.34 ± 12.34" in line for block in table.blocks for line in block.rows)
    for block in table.blocks:
        widths = [max(map(len, column)) + 2 for column in zip(block.head, *block.rows, strict=True)]
        assert sum(widths) <= 120
        assert len(block.caption) <= 120


def test_the_papers_protocol_takes_each_attacks_highest_over_the_kept_checkpoints(tmp_path: Path) -> None:
    run_paper(tmp_path, 4, "--epochs", "2")
    note = numbers(tmp_path, 4)["notes"][2]
    sizes = "128 training images, 2 epochs, 20 test images, 2 test images for smoke"
    assert f"attacks at the epsilon trained for, {sizes}" in note
    assert note.endswith(": the first of the test set, as in the authors' release.")
    for row in numbers(tmp_path, 4)["rows"]:
        results = tmp_path / "tiny" / f"{row['run']},seed=0" / "results"
        each = {e: json.loads((results / f"epoch-00{e}" / "transfer-pgd20.json").read_text()) for e in (1, 2)}
        assert all(result["sample"] == {"order": "first"} for result in each.values())
        best = max(each, key=lambda e: each[e]["robust_accuracy"])
        cells = row["cells"]
        assert cells["pgd20"]["ours"]["paper"]["mean"] == pytest.approx(100 * each[best]["robust_accuracy"])
        assert cells["clean"]["ours"]["paper"]["mean"] == pytest.approx(100 * each[best]["clean_accuracy"])
        honest = json.loads((results / "transfer-pgd20.json").read_text())
        assert cells["pgd20"]["ours"]["honest"]["mean"] == pytest.approx(100 * honest["robust_accuracy"])
        assert "digits-linf-cnn-at,seed=0" in honest["attacks"]["transfer-pgd20"]["settings"]["surrogate"]


def test_differences_are_to_the_order_0_run_image_by_image(out: Path) -> None:
    run_paper(out, 1)
    base, first, *_ = numbers(out, 1)["rows"]
    assert base["run"] == "recipe=digits-linf-cnn-trades"
    assert base["cells"]["clean"]["published_difference"] is None
    cell = first["cells"]["cw20"]["ours"]["honest"]
    expected = (cell["mean"] - base["cells"]["cw20"]["ours"]["honest"]["mean"]) / 100
    assert cell["difference"]["mean"] == pytest.approx(expected)
    assert cell["difference"]["test"] == "McNemar's test over images"
    assert 0 <= cell["difference"]["p"] <= cell["p_adjusted"] <= 1


def stamps(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (out / "tiny").rglob("*") if path.is_file()}


def test_the_same_command_again_makes_only_what_is_missing(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_paper(out, 7)
    before = stamps(out)
    capsys.readouterr()
    assert run_paper(out, 7) == 0
    said = capsys.readouterr().err
    assert stamps(out) == before
    assert "nothing is left to train" in said
    assert "training, 1 of" not in said
    shutil.copytree(out / "tiny", tmp_path / "tiny")
    run, other = (Run(tmp_path / "tiny" / f"recipe=digits-linf-cnn-{m},seed=0") for m in ("trades", "trades-2nd"))
    (run.results / "rays.json").unlink()
    whole = other.metrics.read_bytes()
    other.checkpoint("last").unlink()
    shutil.copy(run.results / "pgd20.json", other.results / "pgd20.json")  # of other weights: not used
    assert run_paper(tmp_path, 7) == 0
    assert other.metrics.read_bytes() == whole
    assert numbers(tmp_path, 7)["rows"] == numbers(out, 7)["rows"]


def test_a_run_that_diverged_is_shown_as_such_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def steep(self: Scale, name: str, overrides: Any = ()) -> Any:
        recipe = usual(self, name, overrides)
        lr = 1e25 if name.endswith("-2nd") else recipe.optimizer.lr
        return replace(recipe, optimizer=replace(recipe.optimizer, lr=lr))

    usual = Scale.recipe
    monkeypatch.setattr(Scale, "recipe", steep)
    for _ in range(2):
        assert run_paper(tmp_path, 7) == 0
        second = numbers(tmp_path, 7)["rows"][1]["cells"]
        assert all(cell["ours"]["honest"] == cell["ours"]["paper"] == {"state": "diverged"} for cell in second.values())
    said = capsys.readouterr()
    assert "diverged" in (tmp_path / "table-7-tiny.md").read_text()
    assert said.err.count("recipe=digits-linf-cnn-trades-2nd,seed=0: training") == 1


def test_several_seeds_give_a_std_and_student_s_interval(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "tiny", tmp_path / "tiny")
    assert run_paper(tmp_path, 7, "--seeds", "0", "1", "--protocols", "honest") == 0
    ours = numbers(tmp_path, 7)["rows"][1]["cells"]["clean"]["ours"]["honest"]
    assert ours["seeds"] == [0, 1]
    assert ours["std"] is not None
    assert ours["difference"]["test"] == "Student's t over seeds"


@pytest.mark.parametrize(
    ("form", "word"),
    [("markdown", "| TRADES |"), ("latex", r"\toprule"), ("html", "Content-Security-Policy"), ("json", '"table": 7')],
)
def test_a_format_is_printed_as_it_is_written(
    form: str, word: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_paper(out, 7, "--format", form) == 0
    printed = capsys.readouterr().out
    assert word in printed
    assert printed == (out / f"table-7-tiny.{WRITERS[form][1]}").read_text()


def test_the_plan_names_every_run_once_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_paper(tmp_path, 4, "--plan") == 0
    said = capsys.readouterr()
    for method in ("at", "trades-awp", "trades-awp-2nd"):
        assert said.err.count(f" digits-linf-cnn-{method} ") == 1
    assert "Table 4: the plan, 3 runs of 1 epochs" in said.err
    assert not list(tmp_path.iterdir())


def test_a_plan_needs_no_data_and_gives_the_cost(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = ["paper", "3", "--data-root", "nowhere"]
    assert cli.main([*full, "--plan"]) == 0
    [hours] = re.findall(r"about ([\d,]+) GPU-hours on one A100", capsys.readouterr().err)
    assert 150 < int(hours) < 300
    assert cli.main(full) == 2
    assert "--yes" in capsys.readouterr().err
    assert cli.main([*full, "--yes"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not list(here.iterdir())


def test_an_a100_takes_for_the_papers_network_what_table_6_says() -> None:
    for row in tables.table(6).rows:
        assert epoch_seconds(get_recipe(row.recipe or "")) == pytest.approx(row.cell("seconds").value)
    awp, base, slim = (
        epoch_seconds(get_recipe(name)) for name in (f"{tables.WRN}-awp", tables.WRN, "cifar10-linf-preact18-trades")
    )
    assert awp > base > 10 * slim


@pytest.mark.slow
def test_runs_at_once_give_the_same_table(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_paper(out, 7)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert run_paper(tmp_path, 7, "--jobs", "2") == 0
    assert numbers(tmp_path, 7)["rows"] == numbers(out, 7)["rows"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["9"], "the paper has no Table 9; its tables are numbered 1 to 8"),
        (["1", "--seeds", "0", "0"], "none of them twice, got 0 0"),
        (["1", "--n", "0"], "n must be >= 1 and"),
        (["8", "--extra", "generated.npz"], "there is no file generated.npz of extra images"),
        (
            ["1", "--scale", "tiny", "--data", "cifar10=a.npz"],
            "does nothing at scale tiny, where digits stand in for cifar10",
        ),
    ],
)
def test_a_bad_option_is_refused_in_one_sentence(words: list[str], sentence: str, here: Path, command: Command) -> None:
    said = command.refused("paper", *words)
    assert sentence in said
    assert said.count("\n") == 1
    assert not list(here.iterdir())


def test_a_folder_of_another_recipe_is_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_paper(out, 7)
    assert run_paper(out, 7, "--epochs", "2") == 2
    assert "holds a run of another recipe: choose another --out" in capsys.readouterr().err


def test_full_scale_is_the_recipes_as_named_and_small_keeps_their_shape() -> None:
    found = entries(1, SCALES["full"])
    assert [entry.recipe.name for entry in found if entry.recipe][1] == "cifar10-linf-preact18-trades-1st"
    etas = [entry.recipe.objective.taylor.eta for entry in found if entry.recipe]
    assert etas[1:] == [0.05, 0.1, 0.2, 0.3, 0.4] * 2
    recipe = found[1].recipe
    assert recipe is not None
    assert (recipe.epochs, recipe.width, recipe.data.train_size) == (200, None, None)
    awp = SCALES["small"].recipe("cifar100-linf-wrn34-10-trades-awp-2nd")
    assert (awp.model, awp.width, awp.epochs, awp.awp and awp.awp.warmup) == ("wrn10-1", 8, 30, 2)
    assert (awp.data.name, awp.data.train_size) == ("cifar100", 10_000)


def test_table_8_trains_the_row_of_generated_images_where_they_are_given() -> None:
    quoted, given = (entries(8, replace(SCALES["full"], extra=extra)) for extra in (None, "1m.npz"))
    assert [entry.row.method for entry in quoted if entry.recipe is None] == ["HAT(DDPM)"]
    assert "--extra FILE.npz trains it" in quoted[5].row.note
    assert "not the published experiment" in quoted[3].row.note
    assert all(entry.recipe for entry in given)
    plain, generated = given[4:6]
    assert plain.recipe is not None
    assert generated.recipe == replace(plain.recipe, data=replace(plain.recipe.data, extra="1m.npz"))
    assert generated.key == f"{plain.key},data.extra=1m.npz"
    with pytest.raises(RattleError, match="--extra does nothing for Table 2"):
        entries(2, replace(SCALES["full"], extra="1m.npz"))


def test_a_teachers_network_is_the_scales() -> None:
    def teacher(scale: str) -> Any:
        [found] = [entry.recipe for entry in entries(2, SCALES[scale]) if "lbgat" in entry.key]
        return found and found.objective.teacher  # pyright: ignore[reportAttributeAccessIssue]

    assert teacher("full") == Teacher(model="resnet18")
    assert teacher("small") == Teacher(model="cnn-slim", width=16)


def test_table_8_holds_the_swa_comparison_of_section_5_3() -> None:
    *_, kd, base, swa, second = entries(8, SCALES["full"])
    assert kd.recipe is not None
    assert kd.recipe.name == "cifar10-linf-resnet18-kd-swa"
    assert swa.recipe is not None
    assert type(swa.recipe.average).__name__ == "SWA"
    assert swa.baseline == second.baseline == base.key
    assert [entry.row.cell("pgd20").printed for entry in (kd, base, swa, second)] == ["52.14", "-", "-", "55.13"]
