"""How runs, attacks, settings and numbers are written in tables and legends."""

import re
from collections.abc import Sequence
from typing import Any

ORDERS = {1: " + 1st", 2: " + 1st + 2nd"}
NORMS = {"linf": "\u2113\u221e", "l2": "\u2113\u2082"}
TITLES = {"clean": "Clean", "autoattack": "AutoAttack", "fgsm": "FGSM", "best-known": "Best known"}


def title_of(attack: str) -> str:
    """An attack in a heading: an abbreviation with a number of steps as the field writes it, any other by its name.

    >>> title_of("pgd20"), title_of("clean"), title_of("my-attack"), title_of("pgd40,step-size=0.01")
    ('PGD-20', 'Clean', 'my-attack', 'PGD-40, step-size 0.01')
    """
    name, *settings = attack.split(",")
    steps = re.fullmatch(r"([a-z]{2,4})(\d+)", name)
    title = f"{steps[1].upper()}-{steps[2]}" if steps else TITLES.get(name, name)
    return ", ".join([title, *(setting.replace("=", " ") for setting in settings)])


def method_of(recipe: dict[str, Any]) -> str:
    """The method of a plain recipe, as the paper writes it; recipes saved before they named it are read part by part.

    >>> method_of({"objective": {"kind": "Trades", "taylor": {"order": 2}}, "awp": {"gamma": 0.005}})
    'TRADES-AWP + 1st + 2nd'
    """
    if isinstance(recipe.get("method"), str):
        return recipe["method"]
    objective = recipe.get("objective")
    if not isinstance(objective, dict):
        return str(recipe.get("name", "unknown method"))
    kind = str(objective.get("kind", "custom objective"))
    awp = "-AWP" if recipe.get("awp") else ""
    taylor = objective.get("taylor")
    order = (taylor if isinstance(taylor, dict) else objective).get("order")
    average = recipe.get("average")
    averaged = f", {average.get('kind')}" if isinstance(average, dict) and average.get("kind") else ""
    terms = ORDERS.get(order, "") if isinstance(order, int) else ""
    return f"{'TRADES' if kind == 'Trades' else kind}{awp}{terms}{averaged}"


def unique_labels(names: Sequence[Sequence[str]]) -> list[str]:
    """A label for each run, from its names: the first, and further ones where labels would repeat.

    >>> unique_labels([("AT", "seed 0"), ("AT", "seed 1"), ("TRADES", "seed 0")])
    ['AT, seed 0', 'AT, seed 1', 'TRADES']
    """
    labels = [first for first, *_ in names]
    for further in list(zip(*names, strict=True))[1:]:
        repeated = {label for label in labels if labels.count(label) > 1}
        labels = [
            f"{label}, {more}" if label in repeated else label for label, more in zip(labels, further, strict=True)
        ]
    return [label if labels.count(label) == 1 else f"{label} ({i})" for i, label in enumerate(labels, start=1)]


def threat_of(recipe: dict[str, Any]) -> tuple[str, float] | None:
    """(norm, epsilon) that a plain recipe trains for."""
    attack = recipe.get("attack")
    threat = attack.get("threat") if isinstance(attack, dict) else None
    if not isinstance(threat, dict) or not isinstance(threat.get("epsilon"), (int, float)):
        return None
    return str(threat.get("norm", "")), float(threat["epsilon"])


def threat_text(recipe: dict[str, Any]) -> str:
    threat = threat_of(recipe)
    return f"{NORMS.get(threat[0], threat[0])}, epsilon {epsilon_text(threat[1])}" if threat else "unknown threat"


def epsilon_text(epsilon: float) -> str:
    """A radius the way it is usually written: in 255ths where that is a whole number, except for multiples of 0.2.

    >>> epsilon_text(8 / 255), epsilon_text(0.2)
    ('8/255', '0.2')
    """
    pixels = round(epsilon * 255)
    whole = abs(epsilon * 255 - pixels) < 1e-6
    return f"{pixels}/255" if whole and pixels % 51 else f"{epsilon:.4g}"


def number(value: float | None, decimals: int = 1, missing: str = "not recorded") -> str:
    """A figure for reading, with a true minus sign."""
    return missing if value is None else f"{value:,.{decimals}f}".replace("-", "\u2212")


def significant(value: float | None, missing: str = "not recorded") -> str:
    """Three significant figures."""
    return missing if value is None else f"{value:#.3g}".rstrip(".").replace("-", "\u2212")


def p_value(p: float) -> str:
    """Three decimals, as far as they say anything."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float | None) -> str:
    """Seconds in words.

    >>> duration(75), duration(7322)
    ('1 min 15 s', '2 h 2 min')
    """
    if seconds is None:
        return "not recorded"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
