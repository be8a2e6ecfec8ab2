"""Names of attacks, methods, networks and datasets, known without importing torch.

An entry says where the object is ("module:attribute"); it is imported when it is asked for. A list, a help text or the
refusal of a mistyped name needs no import at all. Entry points of installed packages are entries too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from rattle.errors import RattleError, unknown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a registry."""

    where: str = ""  # "module:attribute", the module as in an import; nothing for an object that was registered
    summary: str = ""  # one line for lists
    paper: str = ""  # authors and year
    group: str = ""  # the heading of a list it stands under
    variants: tuple[str, ...] | None = None  # suffixes that recipes may add to a method's name; None: ask the method


class Registry(Mapping[str, T]):
    """Objects by name, in the order of their entries.

    package: what modules that begin with a dot are relative to. points: the group of entry points by which installed
    packages add theirs.
    """

    def __init__(self, kind: str, entries: dict[str, Entry], *, package: str = "", points: str = "") -> None:
        self.kind, self.package, self.points = kind, package, points
        self.built_in = frozenset(entries)
        self.known = dict(entries)
        self.objects: dict[str, T] = {}

    @property
    def entries(self) -> dict[str, Entry]:
        """All entries by name, with those of installed packages."""
        if self.points:
            from importlib.metadata import entry_points  # takes as long as all else here

            for point in entry_points(group=self.points):
                self.known.setdefault(point.name, Entry(where=point.value))
            self.points = ""
        return self.known

    def entry(self, name: str) -> Entry:
        """What is known of a name; a mistyped one is refused with the nearest."""
        if name not in self:
            raise unknown(self.kind, name, self)
        return self.known[name]

    def add(self, name: str, value: T, entry: Entry | None = None) -> None:
        """Register an object under a name that no built-in one has; registering a name again replaces it."""
        if name in self.built_in:
            raise RattleError(f"the {self.kind} name {name!r} is taken")
        self.known[name] = entry or Entry()
        self.objects[name] = value

    def __getitem__(self, name: str) -> T:
        """The object of that name, imported now if it was not; KeyError if there is none."""
        if name not in self:
            raise KeyError(name)
        if name not in self.objects:
            module, _, attribute = self.known[name].where.partition(":")
            self.objects[name] = getattr(import_module(module, self.package), attribute)
        return self.objects[name]

    def __contains__(self, name: object) -> bool:
        return name in self.known or name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.entries))  # a module that is imported on the way may register more

    def __len__(self) -> int:
        return len(self.entries)


def lazy_names(package: str, modules: dict[str, list[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__`: modules has the names that each module of the package provides.

    The public modules themselves are found too, so that `import rattle` is enough for `rattle.models.load_weights`.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            if not name.startswith("_") and find_spec(f"{package}.{name}"):
                return import_module(f"{package}.{name}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
