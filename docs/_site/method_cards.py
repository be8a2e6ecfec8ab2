"""One card for every method: the registry's facts, the docstring's formula, measured cost, and the notes.

The notes (paper, differences to the authors' code, how it was checked) are the sections of docs/methods/index.md, so
that each is written once; settings and their defaults come from the code, their meaning from the notes or the code.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from _site.settings import DOCS, ROOT, cells, formula, rows, shown, table
from _site.tex import typeset, with_formulas
from rattle.objectives.registry import METHODS

GROUPS = {
    "paper": "The paper's own bases",
    "rows": "Other rows of the paper's tables",
    "cheap": "Cheap",
    "taught": "Taught by another network",
    "other": "Others",
}
ATTACKS = {  # inner steps that are not the recipe's PGD
    "standard": "none",
    "fat": "PGD on CE, stops early",
    "fat-trades": "PGD on KL, stops early",
    "gat": "one guided step",
    "gat-trades": "one guided step",
    "n-fgsm": "one step from noise",
    "e-at": "PGD on CE, in the l_inf or an l_1 ball",
    "free": "none: each update's backward pass",
    "rslad": "PGD on KL to the teacher",
    "mma": "AN-PGD to the boundary",
}
CHECK = re.compile(r"^Beside the authors' code: (.*)\n", re.MULTILINE)
COST = (
    "CPU time of a short training (4 epochs of 512 CIFAR-10 images, `cnn-slim`, one thread of a 2-core machine "
    "without GPU, three interleaved rounds; `python -m reproduction.methods_study cifar10.npz --calibrate`)"
)


def sections(text: str) -> tuple[str, dict[str, str]]:
    """The text before the first heading of the second level, and by heading what follows it."""
    first, *parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return first, dict(zip(parts[::2], parts[1::2], strict=True))


def named(heading: str) -> list[str]:
    """The methods that a section of the notes is about; none for a section about something else."""
    names = heading.split(", ")
    return names if all(name in METHODS for name in names) else []


@cache
def method_notes() -> tuple[str, dict[str, str]]:
    return sections((DOCS / "methods" / "index.md").read_text(encoding="utf-8"))


def inner_attack(name: str) -> str:
    """The inner maximisation in a few words."""
    attack = METHODS[name].attack
    return ATTACKS.get(name) or f"PGD on {attack.loss.upper()}, {attack.start} start"


def awp(name: str) -> str:
    """The published settings of AWP on this method."""
    found = METHODS[name].awp
    if found is None:
        return "no"
    return f"gamma {found.gamma:g}" + (f", after {found.warmup} epochs" if found.warmup else "")


def taylor(name: str) -> str:
    """Whether recipes take the paper's terms."""
    return "yes" if hasattr(METHODS[name].objective, "taylor") else "no"


@cache
def costs() -> dict[str, float]:
    return json.loads((ROOT / "reproduction" / "results" / "methods-study.json").read_text())["cost"]


@dataclass(frozen=True)
class Note:
    """A row of a table of settings in the notes; it may be about several settings at once."""

    names: list[str]  # with their prefix, hyphens for underscores
    cells: list[str]

    @classmethod
    def of(cls, line: str) -> "Note":
        first, *others = cells(line)
        names = [name.replace("_", "-").split()[0] for name in re.findall(r"`([^`]+)`", first)]
        prefix = names[0].rpartition(".")[0]
        whole = [names[0], *(name if "." in name or not prefix else f"{prefix}.{name}" for name in names[1:])]
        return cls(whole, [first, *others])


def taken_out(section: str) -> tuple[str, list[Note]]:
    """A section without its table of settings, and the rows of that table."""
    match = re.search(r"(?:^\| setting \|.*\n)(?:^\|.*\n?)+", section, re.MULTILINE)
    if not match:
        return section, []
    return section.replace(match[0], ""), [Note.of(line) for line in match[0].splitlines()[2:]]


def is_extra(note: Note, known: set[str]) -> bool:
    """Whether a row is about more than the objective's own settings, and not about another method's of the section."""
    if not note.names[0].startswith("objective."):
        return True
    return bool(note.cells[-1]) and any(name.startswith(f"{note.names[0]}.") for name in known)


def with_notes(settings: list[tuple[str, str, str]], notes: list[Note]) -> list[list[str]]:
    """Settings of the code, with the notes' words where they have some, and what only the notes speak of."""
    words = {name: note.cells[-1] for note in notes for name in note.names}
    known = {name for name, *_ in settings}
    found = [[f"`{name}`", value, words.get(name) or meaning] for name, value, meaning in settings]
    others = [note.cells for note in notes if not known & {*note.names} and is_extra(note, known)]
    return found + [[name, "; ".join(filter(None, values)), meaning] for name, *values, meaning in others]


def cost_line(name: str) -> str:
    """A step of the method, and of it with AWP, SAM or Taylor terms where they were measured."""
    found = {
        key: value
        for key, value in costs().items()
        if key == name or re.fullmatch(rf"{name}(-awp|-sam|-asam)?(-1st|-2nd)?", key)
    }
    if not found:
        return "not measured"
    own = f"{found.pop(name):.2f}" if name in found else "not measured"
    return own + "".join(f"; `{key}` {value:.2f}" for key, value in found.items())


def paper_of(name: str, section: str) -> str:
    """Authors and year from the registry, title and place of the paper from the notes."""
    first = " ".join(section.strip().split("\n\n")[0].split())
    title = re.search(r"\*([^*]+)\*,? ((?:[A-Z][\w ]*)?\d{4}(?: \([^)]*\))?)", first)
    return METHODS.entry(name).paper + (f": *{title[1]}*, {title[2]}" if title else "")


def facts(name: str, section: str) -> list[list[str]]:
    """The rows at the top of a card."""
    check = CHECK.search(section)
    found = {
        "paper": paper_of(name, section),
        "recipes": f"`DATASET-NORM-MODEL-{name}`, such as `digits-linf-cnn-{name}`",
        "inner attack": inner_attack(name),
        "with AWP (`-awp`)": awp(name),
        "Taylor terms (`-1st`, `-2nd`)": taylor(name),
        "a step's cost over TRADES": cost_line(name),
        "loss and gradient beside the authors' code": check[1] if check else None,
    }
    return [[title, value] for title, value in found.items() if value]


def shown_setting(value: Any) -> str:
    """A setting in the plain form that YAML has."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown_setting(part)}" for key, part in value.items())
    return " ".join(map(shown, value)) if isinstance(value, list) else shown(value)


def recipe_settings(name: str, told: list[list[str]]) -> list[list[str]]:
    """What the method sets in its recipes besides its objective, unless the notes have said it."""
    method = METHODS[name]
    said = {name.replace("no-", "") for line in told for name in re.findall(r"`([^`]+)`", line[0])}
    plain = {
        "epochs": f"{method.length:g} of the usual" if method.length != 1 else None,
        "schedule.drops": " ".join(f"{drop:.4g}" for drop in method.drops) if method.drops != (0.5, 0.75) else None,
        **{key: shown_setting(value) for key, value in method.settings.items()},
    }
    return [
        [f"`{key}`", str(value), "set by this method's recipes"]
        for key, value in plain.items()
        if value is not None and key.replace("_", "-") not in said and key.partition(".")[0] not in said
    ]


def method_card(name: str) -> str:
    """The card of a method, in Markdown."""
    method, kind = METHODS[name], type(METHODS[name].objective)
    section = next((text for heading, text in method_notes()[1].items() if name in named(heading)), "")
    section, notes = taken_out(section.replace("](#", "](index.md#"))
    first, more = formula(kind)
    settings = with_notes(rows(method.objective, "objective.", skip=("taylor",)), notes)
    settings += recipe_settings(name, settings)
    taylor = "Settings of `-1st` and `-2nd` (`objective.taylor.*`): [the method](../guides/method.md)."
    parts = [
        f"# `{name}`",
        f"**{method.objective.title}**: {METHODS.entry(name).summary}.",
        table(["", ""], facts(name, section)),
        typeset(first),
        "\n\n".join(map(with_formulas, more.split("\n\n"))) if more else "",
        "$x$ is an image, $x'$ the adversarial image, $f$ the logits, $p$ their softmax, $y$ the label. "
        f"Defined in `{kind.__module__}.{kind.__name__}`.",
        "## Settings",
        table(["setting", "default", "meaning"], settings) if settings else "None of its own.",
        taylor if hasattr(method.objective, "taylor") else "",
        "## Notes" if section else "",
        CHECK.sub("", section),
        f"*Cost*: {COST}. How methods are checked in general: [methods](index.md).",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def method_index() -> str:
    """The page of all methods: a table for each group with links to the cards, then the general part of the notes."""
    first, parts = method_notes()
    title, introduction = first.split("\n", 1)
    groups = []
    for group, heading in GROUPS.items():
        names = [name for name, entry in METHODS.entries.items() if entry.group == group]
        lines = [
            [
                f"[`{name}`]({name}.md)",
                METHODS.entry(name).summary,
                METHODS.entry(name).paper,
                inner_attack(name),
                awp(name),
                taylor(name),
            ]
            for name in names
        ]
        header = ["name", "idea", "paper", "inner attack", "`-awp`", "`-1st`, `-2nd`"]
        groups.append(f"## {heading}\n\n{table(header, lines)}")
    rest = [f"## {heading}\n{text}" for heading, text in parts.items() if not named(heading)]
    return "\n\n".join([title, introduction.strip(), *groups, *rest]) + "\n"
