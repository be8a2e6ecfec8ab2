"""What `--help` says besides tyro's own: the first paragraph of docstrings, names of arguments, every attack."""

import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import tyro

from rattle.cli import names

POSITIONALS = {"path": "RUN", "runs": "RUN", "filter": "TEXT"}  # a field's name -> what help calls the argument


def dataclasses_of(value: object) -> Iterator[type]:
    """The classes of settings and of the settings in them."""
    if is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in fields(value):
            yield from dataclasses_of(getattr(value, field.name))


@contextmanager
def short_docstrings(settings: object) -> Iterator[None]:
    """Let help of nested settings show the first paragraph of their docstrings: what follows is for readers of code."""
    before = {kind: kind.__doc__ for kind in dataclasses_of(settings)}
    try:
        for kind, text in before.items():
            kind.__doc__ = (text or "").split("\n\n")[0]
        yield
    finally:
        for kind, text in before.items():
            kind.__doc__ = text


def description(options: type) -> str:
    """What help says of a command: the first paragraph of its options' docstring, and every attack if it takes some."""
    about = " ".join((options.__doc__ or "").split("\n\n")[0].split())
    if "attacks" in options.__dataclass_fields__:  # pyright: ignore[reportAttributeAccessIssue]
        about += f" The attacks are {', '.join(names.attacks())}; pgd and cw take any number of steps."
    return textwrap.fill(
        about, min(shutil.get_terminal_size().columns, 120), subsequent_indent="  ", break_on_hyphens=False
    )


@cache
def name_positionals(options: type) -> None:
    """Let help call positional arguments by what they are, RUN, where tyro says STR."""
    for name, hint in get_type_hints(options, include_extras=True).items():
        choices = get_origin(get_args(hint)[0]) is Literal if get_origin(hint) is Annotated else True
        if name in names.positionals(options.__module__, options.__name__) and not choices:
            several = get_origin(get_args(hint)[0]) is tuple
            metavar = POSITIONALS.get(name, name.upper()) + (" ..." if several else "")
            metavar = f"[{metavar}]" if hasattr(options, name) else metavar  # it has a default
            options.__annotations__[name] = Annotated[hint, tyro.conf.arg(metavar=metavar)]
