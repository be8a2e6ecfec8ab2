"""Names of attacks, methods, networks and datasets, known without importing torch.

An entry says where the object is ("module:attribute"); it is imported when it is asked for. A list, a help text or the
refusal of a mistyped name needs no import at all. Entry points of installed packages are found by the same registry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from rattle.errors import RattleError, unknown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a registry."""

    where: str  # "module:attribute"
    summary: str = ""  # one line for lists
    paper: str = ""  # authors and year
    group: str = ""  # the heading of a list it stands under
    variants: tuple[str, ...] = ()  # suffixes that recipes may add to a method's name


class Registry(Generic[T]):
    """Objects by name, in the order of their entries; `add` puts in one of the user's own."""

    def __init__(self, kind: str, entries: dict[str, Entry]) -> None:
        self.kind, self.entries = kind, dict(entries)
        self.built_in = frozenset(entries)
        self.objects: dict[str, T] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> T:
        """The object of that name; a mistyped one is refused with the nearest."""
        if name not in self.entries:
            raise unknown(self.kind, name, self.entries)
        if name not in self.objects:
            module, _, attribute = self.entries[name].where.partition(":")
            found: Any = import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
            self.objects[name] = found
        return self.objects[name]

    def add(self, name: str, value: T, entry: Entry | None = None) -> None:
        """Register an object under a name that no built-in one has; registering a name again replaces it."""
        if name in self.built_in:
            raise RattleError(f"the {self.kind} name {name!r} is taken")
        self.entries[name] = entry or Entry(where="")
        self.objects[name] = value
