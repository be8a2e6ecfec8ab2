"""The table that ends a sweep."""

import json
from pathlib import Path

from rattle.report.grid import best_epoch, grid_rows


def write(folder: Path, *robust: float) -> Path:
    folder.mkdir(parents=True)
    lines = [json.dumps({"epoch": i, "val_clean": 0.8, "val_robust": r}) for i, r in enumerate(robust, start=1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def test_settings_stand_in_the_order_of_their_mean_over_seeds(tmp_path: Path) -> None:
    reached = {("0.1", "0"): 0.5, ("0.1", "1"): 0.6, ("0.2", "0"): 0.4, ("0.2", "1"): 0.9, ("0.3", "0"): 0.7}
    points = [
        ({"eta": eta, "seed": seed}, write(tmp_path / f"{eta},{seed}", 0.1, value, 0.2))
        for (eta, seed), value in reached.items()
    ]
    found = grid_rows(points)
    assert found is not None
    columns, rows, best = found
    assert columns == ["eta", "seeds", "clean", "robust"]
    assert rows == [
        ["0.3", "1", "80.0", "70.0"],
        ["0.2", "2", "80.0 ± 0.0", "65.0 ± 35.4"],
        ["0.1", "2", "80.0 ± 0.0", "55.0 ± 7.1"],
    ]
    assert best == tmp_path / "0.3,0"


def test_the_averaged_weights_count_where_a_run_has_them() -> None:
    lines = [{"val_clean": 0.9, "val_robust": 0.6}, {"val_clean": 0.9, "val_robust": 0.5}]
    assert best_epoch(lines) == (0.9, 0.6)
    averaged = [*lines, {"val_clean": 0.9, "val_robust": 0.1, "val_clean_average": 0.7, "val_robust_average": 0.65}]
    assert best_epoch(averaged) == (0.7, 0.65)


def test_runs_without_held_out_images_have_no_table(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "loss": 2.0}\n')
    assert grid_rows([({}, tmp_path), ({}, tmp_path / "never began")]) is None
