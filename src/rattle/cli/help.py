"""What `--help` says besides tyro's own: the first paragraph of docstrings, names of arguments, every attack."""

import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import get_annotations
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import tyro

from rattle.attacks.registry import list_attacks

POSITIONALS = {"path": "RUN", "runs": "RUN", "filter": "TEXT"}  # a field's name -> what help calls the argument


def dataclasses_of(value: object) -> Iterator[type]:
    """The classes of settings, given as an instance or as their class, and of the settings in them."""
    if is_dataclass(value):
        yield value if isinstance(value, type) else type(value)
        for field in fields(value):
            made = field.default if field.default_factory is MISSING else field.default_factory()
            yield from dataclasses_of(made if isinstance(value, type) else getattr(value, field.name))


def default_text(text: str) -> str:
    """What help says of a default: nothing of an empty one, since the option's own words say what it stands for."""
    return "" if text in ("", "''", "None") else f"(default: {text})"


@contextmanager
def for_readers(settings: object) -> Iterator[None]:
    """Let help show the first paragraph of settings' docstrings, the rest being for readers of code, and no empty
    defaults."""
    before = {kind: (kind.__doc__, get_annotations(kind)) for kind in dataclasses_of(settings)}
    try:
        for kind, (text, own) in before.items():
            kind.__doc__ = (text or "").split("\n\n")[0]
            hints, hint = get_type_hints(kind, include_extras=True), tyro.conf.arg(help_behavior_hint=default_text)
            kind.__annotations__ = own | {field.name: Annotated[hints[field.name], hint] for field in fields(kind)}
        yield
    finally:
        for kind, (text, own) in before.items():
            kind.__doc__, kind.__annotations__ = text, own


def description(options: type) -> str:
    """What help says of a command: the first paragraph of its options' docstring, and every attack if it takes some."""
    about = " ".join((options.__doc__ or "").split("\n\n")[0].split())
    if "attacks" in options.__dataclass_fields__:  # pyright: ignore[reportAttributeAccessIssue]
        about += f" The attacks are {', '.join(list_attacks())}; pgd and cw take any number of steps."
    return textwrap.fill(
        about, min(shutil.get_terminal_size().columns, 120), subsequent_indent="  ", break_on_hyphens=False
    )


@cache
def name_positionals(options: type) -> None:
    """Let help call positional arguments by what they are, RUN, where tyro says STR."""
    for name, hint in get_type_hints(options, include_extras=True).items():
        marked = get_origin(hint) is Annotated and tyro.conf.Positional in get_args(hint)
        if marked and get_origin(get_args(hint)[0]) is not Literal:
            several = get_origin(get_args(hint)[0]) is tuple
            metavar = POSITIONALS.get(name, name.upper()) + (" ..." if several else "")
            metavar = f"[{metavar}]" if hasattr(options, name) else metavar  # it has a default
            options.__annotations__[name] = Annotated[hint, tyro.conf.arg(metavar=metavar)]
