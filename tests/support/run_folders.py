"""Run folders made by hand, so that what reads them can be tested without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rattle.evaluation.samples import Sample

RECIPE: dict[str, Any] = {
    "name": "digits-linf-cnn-trades",
    "method": "TRADES",
    "data": {"name": "digits"},
    "model": "cnn",
    "attack": {"threat": {"norm": "linf", "epsilon": 0.2}},
    "objective": {"kind": "Trades", "order": 0},
    "awp": None,
    "average": None,
    "epochs": 3,
    "batch_size": 10,
    "seed": 0,
}


def recipe(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | changes, sort_keys=False), encoding="utf-8")
    return folder


def epochs(folder: Path, n: int = 3) -> Path:
    lines = [
        {"epoch": e, "step": 12 * e, "lr": 0.1 / e, "loss": 2 / e, "clean": 1.5 / e, "zeroth": 0.5 / e}
        | {"val_clean": 1 - 0.5 / e, "val_robust": 0.6 - 0.4 / e}
        for e in range(1, n + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    times = "".join(json.dumps({"epoch": e, "seconds": 2.0}) + "\n" for e in range(1, n + 1))
    (folder / "timing.jsonl").write_text(times, encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps({"rattle": "0", "device": "cpu", "commit": None}))
    return folder


def result(folder: Path, attack: str, flags: Sequence[int], clean: Sequence[int], *, epsilon: float = 0.2) -> Path:
    entry = {"settings": {"kind": "PGD", "threat": {"norm": "linf", "epsilon": epsilon}}, "flags": list(flags)}
    plain = {"data": "digits", "n": len(flags), "attacks": {attack: entry}, "clean_flags": list(clean)}
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / f"{attack}.json").write_text(json.dumps(plain))
    return folder


def gallery(folder: Path, classes: Sequence[str] = ("zero", "one", "two"), **changes: Any) -> Path:
    rng, size = np.random.default_rng(0), len(classes)
    y = np.arange(30) % size
    clean = np.where(rng.random(30) < 0.9, y, (y + 1) % size)
    x = rng.random((size, 1, 8, 8)).astype(np.float32)
    arrays: dict[str, Any] = {
        "classes": np.array(classes, dtype=np.str_),
        "y": y,
        "clean_predicted": clean,
        "adversarial_predicted": np.where(rng.random(30) < 0.5, clean, (y + 1) % size),
        "index": np.arange(size),
        "x": x,
        "x_adv": np.clip(x + 0.2, 0, 1),
        "clean_confidence": np.full(size, 0.9),
        "adversarial_label": (np.arange(size) + 1) % size,
        "adversarial_confidence": np.full(size, 0.6),
        "epsilons": np.array([0.0, 0.1, 0.2]),
        "robust": np.stack([y == clean, (y == clean) & (y < 2), np.zeros(30, dtype=bool)]),
        "attack": "pgd20",
        "norm": "linf",
        "epsilon": 0.2,
        "step": 36,
        "overrides": "",
    }
    (folder / "results").mkdir(exist_ok=True)
    np.savez(folder / "results" / "gallery.npz", kind="Gallery", **(arrays | changes))
    return folder


def landscapes(folder: Path, steepness: float = 1.0, sign: int = 1) -> Path:
    results = folder / "results"
    results.mkdir(exist_ok=True)
    a = np.linspace(-1, 1, 5)
    bowl = steepness * (a[:, None] ** 2 + 2 * a[None, :] ** 2) + 0.1
    signs = np.full((2, 1, 8, 8), sign)
    np.savez(results / "landscape-plane.npz", kind="InputPlane", a=a, b=a, gradient=signs, rademacher=signs)
    x, loss = np.zeros((2, 1, 8, 8)), np.stack([bowl, 2 * bowl])
    surface = {"a": a, "b": a, "loss": loss, "correct": loss < 1, "x": x, "y": np.arange(2)}
    np.savez(results / "landscape-input.npz", kind="InputSurface", **surface)  # type: ignore[arg-type]
    np.savez(results / "landscape-weight-2d.npz", kind="WeightSurface", a=a, b=a, clean=bowl, adversarial=2 * bowl)
    line = bowl[:, 2:3]
    np.savez(
        results / "landscape-weight-1d.npz", kind="WeightSurface", a=a, b=np.zeros(1), clean=line, adversarial=2 * line
    )
    flat = {"step": 36, "lipschitz": 5.4, "input_eigenvalue": 0.2, "weight_eigenvalue": 10.0, "noise_rise": 0.03}
    (results / "flatness.json").write_text(json.dumps(flat | {"noise_rise_error": 0.004, "noise_sigma": 0.01}))
    return folder


def whole(folder: Path, *, right: float = 0.5, steepness: float = 1.0, **changes: Any) -> Path:
    """A run with everything in it; `right` is its share of robust images among 200."""
    epochs(recipe(folder, **changes))
    clean = [1] * 190 + [0] * 10
    for attack, share in (("pgd20", right), ("cw20", right - 0.05)):
        result(folder, attack, [int(i < round(200 * share)) for i in range(200)], clean)
    return landscapes(gallery(folder), steepness)


def sample(*shares: float, n: int = 100, seeds: tuple[int, ...] | None = None, protocol: str = "") -> Sample:
    """One method's flags: for each seed the share of n images that is right."""
    flags = tuple(tuple(int(i < round(share * n)) for i in range(n)) for share in shares)
    return Sample(seeds=seeds or tuple(range(len(shares))), flags=flags, protocol=protocol)
