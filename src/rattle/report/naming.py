"""What runs are called in tables and legends: their method, and what tells two of the same apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

OBJECTIVES = {"AT": "AT", "Trades": "TRADES"}
ORDERS = {0: "", 1: " + 1st", 2: " + 1st + 2nd"}


class Named(Protocol):
    """What a label is made of."""

    @property
    def method(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def folder(self) -> Path: ...


def method_of(recipe: dict[str, Any]) -> str:
    """The method of a plain recipe, as the paper writes it.

    >>> method_of({"objective": {"kind": "Trades", "order": 2}, "awp": {"gamma": 0.005}})
    'TRADES-AWP + 1st + 2nd'
    """
    objective = recipe.get("objective")
    if not isinstance(objective, dict):
        return str(recipe.get("name", "unknown method"))
    kind = str(objective.get("kind", "custom objective"))
    awp = "-AWP" if recipe.get("awp") else ""
    taylor = objective.get("taylor")
    order = (taylor if isinstance(taylor, dict) else objective).get("order")
    average = recipe.get("average")
    averaged = f", {average.get('kind')}" if isinstance(average, dict) and average.get("kind") else ""
    return f"{OBJECTIVES.get(kind, kind)}{awp}{ORDERS.get(order, '') if isinstance(order, int) else ''}{averaged}"


def distinct(runs: Sequence[Named]) -> list[str]:
    """A label for each run: the method; with the seed where methods agree; with the folder where those do too."""
    labels = [run.method for run in runs]
    for extra in (lambda run: f"seed {run.seed}", lambda run: run.folder.name, lambda run: str(run.folder)):
        if len(set(labels)) == len(labels):
            return labels
        repeated = {label for label in labels if labels.count(label) > 1}
        labels = [
            f"{label}, {extra(run)}" if label in repeated else label for label, run in zip(labels, runs, strict=True)
        ]
    return [label if labels.count(label) == 1 else f"{label} ({i})" for i, label in enumerate(labels, start=1)]


def threat_of(recipe: dict[str, Any]) -> tuple[str, float] | None:
    """(norm, epsilon) that a plain recipe trains for."""
    attack = recipe.get("attack")
    threat = attack.get("threat") if isinstance(attack, dict) else None
    if not isinstance(threat, dict) or not isinstance(threat.get("epsilon"), (int, float)):
        return None
    return str(threat.get("norm", "")), float(threat["epsilon"])


def epsilon_in_words(epsilon: float) -> str:
    """A radius the way it is usually written.

    >>> epsilon_in_words(8 / 255), epsilon_in_words(0.2)
    ('8/255', '0.2')
    """
    pixels = epsilon * 255
    return (
        f"{pixels:.0f}/255"
        if pixels >= 0.5 and abs(pixels - round(pixels)) < 1e-6 and round(pixels) % 51
        else f"{epsilon:.4g}"
    )
