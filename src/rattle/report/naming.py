"""How runs, attacks, settings and numbers are written in tables and legends."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rattle.recipes.schema import epsilon_text, flatten

NORM_SYMBOLS = {"linf": "\u2113\u221e", "l2": "\u2113\u2082", "l1": "\u2113\u2081"}
RADIUS = re.compile(r"(linf|l2|l1)=(\d{1,9}(?:\.\d{1,12})?(?:e-\d\d)?)")  # as evaluation names a threat
ATTACK_TITLES = {"clean": "Clean", "autoattack": "AutoAttack", "fgsm": "FGSM", "best-known": "Best known"}
NOT_NAMED = ("name", "method", "seed", "threads", "device", "save_minutes")  # settings that say nothing of the result
MOST_NAMED = 3  # settings in a name; runs that differ in more are named by their folders


def title_of(attack: str) -> str:
    """An attack in a heading: an abbreviation with a number of steps as the field writes it, any other by its name.

    >>> title_of("pgd20"), title_of("clean"), title_of("my-attack"), title_of("pgd40,step-size=0.01")
    ('PGD-20', 'Clean', 'my-attack', 'PGD-40, step-size 0.01')
    >>> title_of("autoattack,linf=0.0313725490"), title_of("autoattack,union")
    ('AutoAttack, \u2113\u221e 8/255', 'AutoAttack, union')
    """
    name, *settings = attack.split(",")
    steps = re.fullmatch(r"([a-z]{2,4})(\d+)", name)
    title = f"{steps[1].upper()}-{steps[2]}" if steps else ATTACK_TITLES.get(name, name)
    for setting in settings:
        radius = RADIUS.fullmatch(setting)
        shown = f"{NORM_SYMBOLS[radius[1]]} {epsilon_text(float(radius[2]))}" if radius else setting.replace("=", " ")
        title += f", {shown}"
    return title


def method_of(recipe: Mapping[str, Any]) -> str:
    """The method that a plain recipe names, as the paper writes it."""
    return str(recipe.get("method") or recipe.get("name", "unknown method"))


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


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings by their dotted names in words, names by their last part; nothing where they are too many to read.

    >>> settings_text({"objective.taylor.eta": 0.1, "epochs": 5})
    'eta 0.1, epochs 5'
    """
    if len(settings) > MOST_NAMED:
        return ""
    lasts = [name.rpartition(".")[2] for name in settings]
    texts = []
    for (name, value), last in zip(settings.items(), lasts, strict=True):
        shown = last if lasts.count(last) == 1 else name
        texts.append(f"{shown} {value_text(value)}")
    return ", ".join(texts)


def value_text(value: Any) -> str:
    """The value of a setting."""
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def unique_labels(names: Sequence[tuple[str, ...]]) -> list[str]:
    """A label for each run, from its names: the first, and as many more as it takes to be unique.

    >>> unique_labels([("AT", "seed 0"), ("AT", "seed 1"), ("TRADES", "seed 0")])
    ['AT, seed 0', 'AT, seed 1', 'TRADES']
    """
    labels = []
    for own in names:
        length = 1
        while length < len(own) and sum(other[:length] == own[:length] for other in names) > 1:
            length += 1
        labels.append(", ".join(own[:length]))
    return labels


def recipe_threat(recipe: Mapping[str, Any]) -> tuple[str, float] | None:
    """(norm, epsilon) that a plain recipe trains for."""
    attack = recipe.get("attack")
    threat = attack.get("threat") if isinstance(attack, dict) else None
    if not isinstance(threat, dict) or not isinstance(threat.get("epsilon"), (int, float)):
        return None
    return str(threat.get("norm", "")), float(threat["epsilon"])


def threat_text(recipe: Mapping[str, Any]) -> str:
    threat = recipe_threat(recipe)
    return (
        f"{NORM_SYMBOLS.get(threat[0], threat[0])}, epsilon {epsilon_text(threat[1])}" if threat else "unknown threat"
    )


def number(value: float | None, decimals: int = 1) -> str:
    """A figure for reading, with a true minus sign."""
    return f"{value:,.{decimals}f}".replace("-", "\u2212") if isinstance(value, (int, float)) else "not recorded"


def significant(value: float | None) -> str:
    """Three significant figures."""
    shown = f"{value:#.3g}".rstrip(".") if isinstance(value, (int, float)) else "not recorded"
    return shown.replace("-", "\u2212")


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
