"""A griffe extension: comments behind a dataclass's fields are what the API pages say of them; doctests are code."""

import re
from typing import Any

from griffe import Class, Docstring, Extension, Object

from _site.settings import comments, parameter_comments

PARAMETER = re.compile(r"(?:^|(?<=[.;:] ))(\w+(?:, \w+)*(?:,? and \w+)?): ")
EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> (?:.|\n(?!\n))*")


class FieldComments(Extension):
    """Makes docstrings of comments, and blocks of code of doctests."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe with everything that was read."""
        if obj.docstring is not None:
            if obj.is_function or obj.is_class:
                obj.docstring.value = listed_parameters(obj.docstring.value, {p.name for p in obj.parameters})
            if obj.is_function and obj.lineno:
                found = parameter_comments(obj.source.splitlines())
                listed = "\n".join(f"- `{name}`: {text}" for name, text in found.items())
                obj.docstring.value += f"\n\n{listed}" if listed else ""
            obj.docstring.value = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Called by griffe with each class that was read from a file."""
        found = comments(cls.source.splitlines()) if cls.lineno else {}
        for name, text in found.items():
            member = cls.members.get(name)
            if member is not None and member.is_attribute and member.docstring is None:
                member.docstring = Docstring(text[:1].upper() + text[1:] + ".", parent=member)  # type: ignore[assignment]


def listed_parameters(text: str, names: set[str]) -> str:
    """The docstring with its paragraph of parameters, "x: what it is. y, z: what they are.", as a list.

    >>> listed_parameters("Add.\\n\\nx: a number. y, z: two\\nmore.", {"x", "y", "z"})
    'Add.\\n\\n- `x`: a number\\n- `y`, `z`: two more'
    """
    chunks = text.split("\n\n")
    for i, chunk in enumerate(chunks):
        line = " ".join(part.strip() for part in chunk.splitlines())
        found = [m for m in PARAMETER.finditer(line) if {*re.split(r",? and |, ", m[1])} <= names]
        if found and found[0].start() == 0:
            ends = [m.start() for m in found[1:]] + [len(line)]
            marked = [", ".join(f"`{name}`" for name in re.split(r",? and |, ", m[1])) for m in found]
            texts = [line[m.end() : end].strip().rstrip(".;") for m, end in zip(found, ends, strict=True)]
            chunks[i] = "\n".join(f"- {names_}: {said}" for names_, said in zip(marked, texts, strict=True))
    return "\n\n".join(chunks)
