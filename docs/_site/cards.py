"""One card for every method and attack: the registry's facts, the docstring's formula, measured cost, and the notes.

The notes (paper, differences to the authors' code, how it was checked) are the sections of docs/methods/index.md and
the rows of the table in docs/attacks/index.md, so that each is written once; settings and defaults come from the code.
"""

import inspect
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rattle.attacks.base import Ensemble
from rattle.attacks.registry import get_attack, list_attacks
from rattle.objectives.registry import METHODS
from rattle.threat import Threat
from settings import rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GROUPS = {
    "paper": "The paper's own bases",
    "rows": "Other rows of the paper's tables",
    "cheap": "Cheap",
    "taught": "Taught by another network",
    "other": "Others",
}
COST = (
    "processor time of a short training (4 epochs of 512 CIFAR-10 images, `cnn-slim`, one thread of a 2-core machine without GPU, three "
    "interleaved rounds; `python benchmarks/methods_study.py cifar10.npz --calibrate`)"
)


def table(header: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *lines])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


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


@cache
def method_rows() -> dict[str, dict[str, str]]:
    """The table of all methods by name."""
    lines = [cells(line) for line in method_notes()[0].splitlines() if line.startswith("| ")]
    header = next(line for line in lines if line[0] == "name")
    return {
        line[0].strip("`"): dict(zip(header, line, strict=True))
        for line in lines
        if len(line) == len(header) and line[0].strip("`") in METHODS
    }


@cache
def costs() -> dict[str, float]:
    return json.loads((ROOT / "results" / "methods-study.json").read_text())["cost"]


def formula(kind: type) -> tuple[str, str]:
    """A docstring's first paragraph, and the others without their examples."""
    first, *others = [part.strip() for part in (inspect.getdoc(kind) or "").split("\n\n")]
    prose = [part for part in others if not part.startswith(">>>")]
    return " ".join(first.split()), "\n\n".join(" ".join(part.split()) for part in prose)


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


def with_notes(settings: list[tuple[str, str, str]], notes: list[Note]) -> list[list[str]]:
    """Settings of the code, with the notes' words where they have some, and what only the notes speak of."""
    words = {name: note.cells[-1] for note in notes for name in note.names}
    known = {name for name, *_ in settings}
    found = [[f"`{name}`", value, words.get(name) or meaning] for name, value, meaning in settings]
    others = [note.cells for note in notes if not known & {*note.names}]
    return found + [[name, "; ".join(filter(None, values)), meaning] for name, *values, meaning in others]


def cost_line(name: str) -> str:
    found = {key: value for key, value in costs().items() if key == name or re.fullmatch(rf"{name}(-awp|-sam|-asam)?(-1st|-2nd)?", key)}
    if not found:
        return "not measured"
    own = f"{found.pop(name):.2f}" if name in found else "not measured"
    return own + "".join(f"; `{key}` {value:.2f}" for key, value in found.items())


def method_card(name: str) -> str:
    """The card of a method, in Markdown."""
    method, row = METHODS[name], method_rows().get(name, {})
    section = next((text for heading, text in method_notes()[1].items() if name in named(heading)), "")
    section, notes = taken_out(section.replace("](#", "](index.md#"))
    first, more = formula(type(method.objective))
    facts = [
        ["paper", method.paper],
        ["recipes", f"`DATASET-NORM-MODEL-{name}`, such as `digits-linf-cnn-{name}`"],
        ["inner attack", row.get("inner attack", "")],
        ["with AWP (`-awp`)", row.get("`-awp`", "")],
        ["Taylor terms (`-1st`, `-2nd`)", row.get("`-1st`, `-2nd`", "")],
        ["a step's cost over TRADES", cost_line(name)],
        ["loss and gradient beside the authors' code", next(iter([*row.values()][5:]), "")],
    ]
    settings = with_notes(rows(method.objective, "objective.", skip=("taylor",)), notes)
    plan = [
        [f"`{key}`", " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value), "of this method's recipes"]
        for key, value in method.settings.items()
        if f"`{key}`" not in {line[0] for line in settings}
    ]
    parts = [
        f"# `{name}`",
        f"**{method.objective.title}**: {method.summary}.",
        table(["", ""], [line for line in facts if line[1]]),
        f"    {first}" if len(first) < 110 else f"```text\n{first}\n```",
        more,
        "## Settings",
        table(["setting", "default", "meaning"], settings + plan) if settings or plan else "None of its own.",
        "Settings of `-1st` and `-2nd` (`objective.taylor.*`): [the method](../guides/method.md)." if hasattr(method.objective, "taylor") else "",
        f"Defined in `{type(method.objective).__module__}.{type(method.objective).__name__}`. "
        "x is an image, x' its adversarial one, f the logits, p their softmax, y the label.",
        "## Notes" if section else "",
        section,
        f"*Cost*: {COST}. What the table of all methods says in general, and how each was checked: [methods](index.md)."
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def method_index() -> str:
    """The page of all methods: the general part of the notes with links to the cards, then them by group."""
    first, parts = method_notes()
    for name in METHODS:
        first = first.replace(f"| `{name}` |", f"| [`{name}`]({name}.md) |")
    groups = [
        f"**{title}**\n\n" + "\n".join(f"- [`{name}`]({name}.md): {m.summary} ({m.paper})" for name, m in METHODS.items() if m.group == group)
        for group, title in GROUPS.items()
        if any(m.group == group for m in METHODS.values())
    ]
    rest = [f"## {heading}\n{text}" for heading, text in parts.items() if not named(heading)]
    title, rest_of_first = first.split("\n", 1)
    return "\n\n".join([title, *groups, "## All in one table", rest_of_first, *rest])


@cache
def attack_rows() -> dict[str, list[str]]:
    """The table of attacks: what it is, norms, by name."""
    text = (DOCS / "attacks" / "index.md").read_text(encoding="utf-8")
    lines = [cells(line) for line in text.splitlines() if line.startswith("| `")]
    return {name.strip("` "): line[1:] for line in lines if len(line) == 4 for name in line[0].split(",")}


def slug(attack: str) -> str:
    return attack.replace("+", "-and-")


@cache
def attack_seconds() -> dict[str, list[str]]:
    """By component: processor seconds, ours and the reference's, means over three seeds."""
    runs = json.loads((ROOT / "benchmarks" / "results" / "autoattack-cifar10.json").read_text())["models"]["cifar10"]["runs"]
    mean = lambda who, name: sum(run["processor_seconds"][who][name] for run in runs) / len(runs)  # noqa: E731
    found = {name: (mean("ours", name), mean("reference", name)) for name in runs[0]["processor_seconds"]["ours"]}
    found["autoattack"] = tuple(map(sum, zip(*found.values(), strict=True)))  # type: ignore[assignment]
    return {name: [f"{ours:.1f}", f"{reference:.1f}"] for name, (ours, reference) in found.items()}


def attack_card(name: str) -> str:
    """The card of an attack, in Markdown."""
    attack = get_attack(name, Threat())
    what, norms, *_ = attack_rows()[name]
    first, more = formula(type(attack))
    settings = [] if isinstance(attack, Ensemble) else rows(attack, f"{name}.", skip=("threat",))
    parts = list(attack.components()) if isinstance(attack, Ensemble) else []
    facts = [["norms", norms], ["in Python", f'`rattle.get_attack("{name}", rattle.Threat(epsilon=8 / 255))`'],
             ["in the shell", f"`rattle evaluate RUN --attacks {name}`"]]
    if parts:
        facts.append(["parts, in order", ", ".join(f"[`{part}`]({slug(part)}.md)" if part in list_attacks() else f"`{part}`" for part in parts)])
    seconds = attack_seconds().get(name)
    source = inspect.getmodule(type(attack)).__doc__ or ""
    chunks = [
        f"# `{name}`",
        what + ".",
        table(["", ""], facts),
        f"    {first}" if len(first) < 110 else f"```text\n{first}\n```",
        more,
        "## Settings",
        table(["setting", "value", "meaning"], [[f"`{n}`", v, m] for n, v, m in settings]) if settings else "None: with other parts it would be another attack; run the parts by their own names.",
        "## Cost and check",
        f"Processor seconds on 200 CIFAR-10 images, ours {seconds[0]}, the reference package {seconds[1]} (means of seeds 0 to 2, l_inf 2/255, a ResNet of 20 thousand weights, one thread of a 2-core machine without GPU; verdicts of the whole ensemble agree on all 200 in each seed): [how it was measured](index.md#measured-against-the-reference)." if seconds else "Its time was not measured by itself.",
        "A linear model whose optimum is known holds it to the contract of attacks (tests/support/attack_cases.py)" + ("; settings are compared field by field, and verdicts image by image, with the reference authors' package `pyautoattack` 0.2.0 (tests/attacks/test_autoattack.py)." if re.match("apgd|fab|square|autoattack", name) else "."),
        f"Defined in `{type(attack).__module__}.{type(attack).__name__}`: {' '.join(source.split(chr(10)*2)[0].split())}",
    ]
    return "\n\n".join(chunk for chunk in chunks if chunk) + "\n"


def attack_index(text: str) -> str:
    """The page of attacks with links from its table to the cards."""
    for name in list_attacks():
        text = re.sub(rf"(^\|[^|]*)`{re.escape(name)}`", rf"\1[`{name}`]({slug(name)}.md)", text, flags=re.MULTILINE)
    return text
