"""Results on different images never stand side by side without saying so."""

import json
from pathlib import Path

from rattle.evaluation.samples import Sample, on_shared_images
from rattle.report import build_page
from rattle.report.compare import compare_runs, over_seeds
from rattle.report.run_data import load_runs
from rattle.report.tables import write_table
from support import run_folders as made


def placed(folder: Path, attack: str, flags: list[int], index: list[int], **more: object) -> None:
    """A result on these images of the digits."""
    made.result(folder, attack, flags, [1] * len(flags))
    path = folder / "results" / f"{attack}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"index": index, **more}))


def test_two_samples_are_paired_by_checksum_or_else_by_number() -> None:
    one = Sample(seeds=(0,), flags=((1, 0, 1),), images=("a", "b", "c"), places=("d:0", "d:1", "d:2"))
    two = Sample(seeds=(0,), flags=((0, 1),), images=("c", "a"), places=("e:5", "e:6"))
    first, second = on_shared_images(one, two) or (one, two)
    assert (first.flags, second.flags) == (((1, 1),), ((1, 0),))
    assert first.images == second.images == ("a", "c")
    old = Sample(seeds=(0,), flags=((0, 0),), places=("d:2", "d:9"))
    first, second = on_shared_images(one, old) or (one, old)
    assert (first.flags, second.flags) == (((1,),), ((0,),))
    assert on_shared_images(two, old) is None


def test_a_paired_test_uses_the_images_both_have_and_is_not_made_without_any(tmp_path: Path) -> None:
    a, b, c = (made.recipe(tmp_path / str(seed), seed=seed) for seed in (0, 1, 2))
    placed(a, "pgd20", [1, 0, 1, 0], [4, 5, 6, 7])
    placed(b, "pgd20", [0, 0], [6, 4])
    placed(c, "pgd20", [0, 0], [1, 2])
    tests, refused = compare_runs(load_runs([a, b, c]))
    counts = {test.attack: (test.counts.n, test.counts.only_first, test.counts.only_second) for test in tests}
    assert counts == {"clean": (2, 0, 0), "pgd20": (2, 2, 0)}
    assert refused[0] == "TRADES, seed 0 and TRADES, seed 2 (Clean, PGD-20): they share none of their 4 and 2 images"
    assert len(refused) == 2


def test_clean_comes_from_the_most_images_and_every_cell_says_its_number(tmp_path: Path) -> None:
    folder = made.recipe(tmp_path / "a")
    placed(folder, "pgd20", [1, 0, 1, 0], [0, 1, 2, 3])
    placed(folder, "autoattack", [1, 0], [0, 1])
    comparison = over_seeds(load_runs([folder]))
    assert comparison.images is None
    text = write_table(comparison, "markdown")
    assert "| 100.00 (n 4) | 50.00 (n 4) | 50.00 (n 2) |" in text
    assert "n: test images; tests use those that both rows have." in text
    placed(folder, "autoattack", [1, 0, 1, 0], [0, 1, 2, 3])
    same = write_table(over_seeds(load_runs([folder])), "latex")
    assert "n = 4 test images." in same
    assert "(n " not in same


def test_seeds_count_on_the_images_that_all_have(tmp_path: Path) -> None:
    placed(made.recipe(tmp_path / "a"), "pgd20", [1, 0, 1, 0], [0, 1, 2, 3])
    placed(made.recipe(tmp_path / "b", seed=1), "pgd20", [1, 1], [3, 2])
    (row,) = over_seeds(load_runs([tmp_path / "a", tmp_path / "b"])).rows.values()
    assert (len(row["pgd20"].seeds), row["pgd20"].n, row["pgd20"].summary.mean) == (2, 2, 0.75)


def test_an_attack_that_breaks_more_than_autoattack_is_shown_as_the_bound(tmp_path: Path) -> None:
    folder = made.recipe(tmp_path / "a")
    placed(folder, "autoattack", [1, 1, 0, 1], [0, 1, 2, 3])
    placed(folder, "pgd20", [0, 0, 1, 0], [9, 1, 2, 8])  # breaks image 1, which AutoAttack left
    (run,) = load_runs([folder])
    assert run.columns["best-known"].flags == ((1, 0, 0, 1),)
    text = write_table(over_seeds([run]), "markdown")
    assert "Best known" in text
    assert "of AutoAttack's images those that no attack here broke" in text
    made.result(folder, "pgd20", [0, 0, 0, 0], [1] * 4, epsilon=0.4)  # another threat bounds nothing
    assert "best-known" not in load_runs([folder])[0].columns


def test_every_cell_of_the_page_says_its_number_of_images(tmp_path: Path) -> None:
    folders = [made.recipe(tmp_path / "a"), made.recipe(tmp_path / "b", seed=1)]
    for folder, robust in zip(folders, (90, 40), strict=True):
        placed(folder, "pgd20", [1] * robust + [0] * (100 - robust), list(range(100)))
    placed(folders[0], "autoattack", [1] * 10, list(range(10)))
    page = build_page(folders, tmp_path / "page.html").read_text()
    assert page.count('class="value best"') == 1  # the clear winner under PGD-20, and not the tie on clean images
    assert page.count("<small>n 100</small>") == 4 + 2  # here and in the table over seeds
    assert page.count("<small>n 10</small>") == 1 + 1
