"""Documentation that the code holds: docstrings, and the comment behind each setting of a frozen dataclass."""

import dataclasses
import inspect
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIELD = re.compile(r"^ {4}(\w+): (?!ClassVar)")
COMMENT = re.compile(r"  # (.*?)(?:  # pyright: .*)?$")


def as_markdown(comment: str) -> str:
    """A comment as it is written: *conv* is a pattern in code, and no emphasis."""
    return comment.replace("*", r"\*")


def comments(lines: list[str]) -> dict[str, str]:
    """By field, the comment at the end of its line, or of the lines that its default takes."""
    found: dict[str, str] = {}
    name = None
    for line in lines:
        field = FIELD.match(line)
        if field:
            name = field[1]
        elif not line.strip() or line.startswith(("    def ", "    @")):
            name = None
        comment = COMMENT.search(line)
        if name and comment:
            found[name] = as_markdown(comment[1])
            name = None
    return found


def parameter_comments(lines: list[str]) -> dict[str, str]:
    """By parameter, the comment at the end of its line in a signature that has a line for each."""
    found = {}
    for line in lines:
        if re.match(r"\s*\) ->", line):
            return found
        match = re.match(r"\s+(\*{0,2}\w+)\b[^#]*?,?  # (.*)$", line)
        if match:
            found[match[1]] = as_markdown(match[2])
    return {}


def meanings(kind: type) -> dict[str, str]:
    """Comments of a class and of those that it inherits its fields from."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            found |= comments(inspect.getsource(base).splitlines())
    return found


def shown(value: Any) -> str:
    """A default as people write it: 8/255 and 5/6, not their decimals."""
    if isinstance(value, tuple):
        return " ".join(map(shown, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if not isinstance(value, float):
        return str(value)
    for whole in (255, 6, 3, 120, 85):  # epsilon, and the epochs that some schedules were published with
        parts = value * whole
        if abs(parts - round(parts)) < 1e-9 and round(value, 4) != value:
            return f"{round(parts)}/{whole}" if whole in (255, 120, 85) else str(Fraction(round(parts), whole))
    return f"{value:g}"


def rows(settings: Any, prefix: str, skip: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """Name, default and meaning of every field, those of nested settings too."""
    known = meanings(type(settings))
    found = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        name = prefix + field.name.replace("_", "-")
        if field.name in skip:
            continue
        if dataclasses.is_dataclass(value) and dataclasses.fields(value):
            found += rows(value, name + ".")
        else:
            found.append((name, shown(value), known.get(field.name, "")))
    return found


def formula(kind: type) -> tuple[str, str]:
    """A docstring's first paragraph, and the others without their examples."""
    first, *others = [part.strip() for part in (inspect.getdoc(kind) or "").split("\n\n")]
    prose = [part for part in others if not part.startswith(">>>")]
    return " ".join(first.split()), "\n\n".join(" ".join(part.split()) for part in prose)


def table(header: list[str], lines: list[list[str]]) -> str:
    """Rows of cells in Markdown."""
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *escaped])


def cells(line: str) -> list[str]:
    """The cells of a row in Markdown."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
