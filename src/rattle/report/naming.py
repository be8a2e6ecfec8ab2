"""How runs, attacks, settings and numbers are written in tables and legends."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rattle.recipes.schema import epsilon_text, flatten

ORDERS = {1: " + 1st", 2: " + 1st + 2nd"}
NORMS = {"linf": "\u2113\u221e", "l2": "\u2113\u2082"}
TITLES = {"clean": "Clean", "autoattack": "AutoAttack", "fgsm": "FGSM", "best-known": "Best known"}
NOT_NAMED = ("name", "method", "seed", "threads", "device", "save_minutes")  # settings that say nothing of the result
MOST_NAMED = 3  # settings in a name; runs that differ in more are told apart by their folders


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


def varied(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dotted names of the settings in which plain recipes differ; of those that vary together the first.

    >>> varied([{"eta": 0.1, "lr": 1, "seed": 0}, {"eta": 0.2, "lr": 2, "seed": 0}, {"eta": 0.1, "lr": 1, "seed": 1}])
    ['eta']
    """
    settings = [flatten(recipe) for recipe in recipes]
    found: dict[tuple[int, ...], str] = {}
    for name in dict.fromkeys(name for each in settings for name in each if name.split(".")[0] not in NOT_NAMED):
        values = [repr(each.get(name)) for each in settings]
        equal_to = tuple(values.index(value) for value in values)
        if any(equal_to):
            found.setdefault(equal_to, name)
    return list(found.values())


def short_setting(name: str, among: Sequence[str]) -> str:
    """The last part of a dotted name, with the one before where another of `among` ends alike.

    >>> short_setting("objective.taylor.eta", ["objective.taylor.eta", "awp.gamma"])
    'eta'
    """
    last = name.split(".")[-1:]
    alike = [other for other in among if other.split(".")[-1:] == last]
    return ".".join(name.split(".")[-2:] if len(alike) > 1 else last)


def setting_text(name: str, value: Any) -> str:
    """A setting's value as it is written in a name; `name` tells a radius."""
    if name.endswith("epsilon") and isinstance(value, float):
        return epsilon_text(value)
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def settings_text(recipe: Mapping[str, Any], names: Sequence[str]) -> str:
    """The settings of those dotted names in words; nothing where they are too many to read.

    >>> settings_text({"taylor": {"eta": 0.1}, "epochs": 5}, ["taylor.eta", "epochs"])
    'eta 0.1, epochs 5'
    """
    values = flatten(recipe)
    texts = [f"{short_setting(name, names)} {setting_text(name, values.get(name))}" for name in names]
    return ", ".join(texts) if len(texts) <= MOST_NAMED else ""


def unique_labels(names: Sequence[Sequence[str]]) -> list[str]:
    """A label for each run, from its names: the first, and further ones where labels would repeat; empty ones are
    passed over.

    >>> unique_labels([("AT", "seed 0"), ("AT", "seed 1"), ("TRADES", "seed 0")])
    ['AT, seed 0', 'AT, seed 1', 'TRADES']
    """
    labels = [first for first, *_ in names]
    for further in list(zip(*names, strict=True))[1:]:
        repeated = {label for label in labels if labels.count(label) > 1}
        labels = [
            f"{label}, {more}" if label in repeated and more else label
            for label, more in zip(labels, further, strict=True)
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


def number(value: float | None, decimals: int = 1, missing: str = "not recorded") -> str:
    """A figure for reading, with a true minus sign."""
    return missing if not isinstance(value, (int, float)) else f"{value:,.{decimals}f}".replace("-", "\u2212")


def significant(value: float | None, missing: str = "not recorded") -> str:
    """Three significant figures."""
    return missing if not isinstance(value, (int, float)) else f"{value:#.3g}".rstrip(".").replace("-", "\u2212")


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
