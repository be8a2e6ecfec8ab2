"""What is public, and whether it is documented: held by `mkdocs build --strict` and by a test."""

import dataclasses
import inspect
import re
from pathlib import Path

import rattle

API = Path(__file__).parents[1] / "api"


def undocumented() -> list[str]:
    """Public names, and public functions of public classes, without a docstring."""
    missing = []
    for name in rattle.__all__:
        thing = getattr(rattle, name)
        if not own_docstring(thing):
            missing.append(name)
        if inspect.isclass(thing):
            functions = {
                key: value for key, value in vars(thing).items() if inspect.isfunction(value) and key[0] != "_"
            }
            missing += [f"{name}.{key}" for key, value in functions.items() if not inspect.getdoc(value)]
    return missing


def own_docstring(thing: object) -> str:
    """A docstring that somebody wrote: `dataclass` gives a class without one its signature."""
    text = inspect.getdoc(thing) or ""
    made = dataclasses.is_dataclass(thing) and text.startswith(f"{getattr(thing, '__name__', '')}(")
    return "" if made else text


def on_api_pages() -> list[str]:
    """The names that the API pages show, in their order."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(API.glob("*.md")))
    return re.findall(r"^::: rattle\.(\w+)$", text, re.MULTILINE)
