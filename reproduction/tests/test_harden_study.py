"""The study of harden: what its tables are made of."""

import argparse
from pathlib import Path
from typing import Any

import reproduction.harden_study as study


def run(network: str, seed: int, clean: int, robust: int) -> dict[str, Any]:
    flags = {"clean": "1" * clean + "0" * (10 - clean), "pgd20": "0" * 10, "autoattack": "1" * robust + "0"}
    return {"case": "svhn", "network": network, "seed": seed, "found": flags}


def test_tables_hold_means_and_differences_paired_by_seed() -> None:
    runs = [run("before", 0, 9, 1), run("before", 1, 7, 1), run("hardened", 0, 8, 4), run("hardened", 1, 6, 4)]
    text = study.report([*runs, run("scratch", 1, 4, 4)])
    assert "| svhn | before | 2 | 80.0 ± 14.1 | 0.0 ± 0.0 | 50.0 ± 0.0 |  |" in text
    assert "| svhn: hardened less before | 2 | -10.0 [-10.0, -10.0] | +30.0 [+30.0, +30.0] |" in text
    assert "| svhn: hardened less scratch | 1 | +20.0 | +0.0 |" in text


def test_every_case_is_trained_normally_by_a_recipe(tmp_path: Path) -> None:
    options = argparse.Namespace(out=tmp_path, cifar10=Path("cifar10.npz"), svhn=Path("svhn-mini.npz"))
    for case in study.cases(options).values():
        recipe = study.plain_recipe(case, 2)
        assert (recipe.method, recipe.seed, recipe.model) == ("Standard", 2, case.model)
