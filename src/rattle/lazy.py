"""Names of a package that are imported when they are first used (PEP 562), so that importing it imports no torch."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: dict[str, list[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__`: modules has the names that each module of the package provides."""
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
