"""A griffe extension: comments behind a dataclass's fields are what the API pages say of them; doctests are code."""

import re
from typing import Any

from griffe import Class, Docstring, Extension, Object

from _site.settings import comments, parameter_comments

EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> (?:.|\n(?!\n))*")


class FieldComments(Extension):
    """Makes docstrings of comments, and blocks of code of doctests."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe with everything that was read."""
        if obj.docstring is not None:
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
