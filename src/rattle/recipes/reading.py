"""Text of YAML and JSON as plain data, within limits that honest files never meet: files are untrusted."""

import json
import math
from pathlib import Path
from typing import Any

import yaml

from rattle.errors import RattleError, first_line

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C: every checkpoint holds a recipe
LARGEST_TEXT = 2**20  # characters of YAML; a recipe has 2,000
DEEPEST = 40  # collections inside each other
LARGEST_JSON = 2**28  # bytes of a file; the results of 1,000,000 images have 20,000,000
LONGEST_NUMBER = 40  # digits


def read_text(path: Path) -> str:
    """The text of a file; RattleError if it cannot be read, is too long for YAML, or is not UTF-8."""
    try:
        if path.stat().st_size > LARGEST_TEXT:
            raise RattleError(f"{path} is too long to be read: more than {LARGEST_TEXT:,} bytes")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as reason:
        raise RattleError(f"{path} is not UTF-8 text: save it as UTF-8") from reason
    except OSError as reason:
        raise RattleError(f"cannot read {path}: {reason.strerror or reason}") from reason


class Loader(LOADER):
    """The safe loader, that refuses a key which stands twice in a mapping: only one of the two would count."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set()
        for key, _ in node.value:
            if key.value in keys:
                raise RattleError(f"the key {key.value!r} stands there twice")
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The data in a recipe's YAML; RattleError if it is not valid, has a key twice or goes beyond the limits."""
    try:
        if len(text) > LARGEST_TEXT:
            raise RattleError(f"it is too long: more than {LARGEST_TEXT:,} characters")
        depth = 0
        for event in yaml.parse(text, LOADER):  # what would take much memory or time, before any of it is constructed
            if isinstance(event, yaml.AliasEvent):
                raise RattleError(f"it has the alias *{event.anchor}: write the values out")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth >= DEEPEST:
                raise RattleError(f"it is nested more than {DEEPEST} levels deep")
        return yaml.load(text, Loader)
    except RattleError as reason:
        raise RattleError(f"the recipe is refused: {reason}") from None
    except Exception as reason:  # its constructors raise every kind, for `!!int x`, a date that is none, 5,000 digits
        words = " ".join(str(reason).split()) if isinstance(reason, yaml.YAMLError) else first_line(reason)
        raise RattleError(f"the recipe is not valid YAML: {words}") from reason


def parse_json(text: str | bytes) -> Any:
    """The data in a text of JSON; RattleError, which is a ValueError, if it is not valid or goes beyond the limits."""
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        found = json.loads(text, parse_int=whole_number)
        if "\\ud" in text.lower():  # half a character, as of a path that is not UTF-8, cannot be written anywhere
            found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise RattleError(f"it is nested more than {DEEPEST} levels deep") from None
    except ValueError as reason:
        raise RattleError(f"it is not valid JSON: {first_line(reason)}") from reason
    check_depth(found, DEEPEST)
    return found


def check_depth(found: Any, left: int) -> None:
    """Refuse lists and mappings more than `left` levels deep."""
    if not isinstance(found, dict | list):
        return
    if left == 0:
        raise RattleError(f"it is nested more than {DEEPEST} levels deep")
    for value in found.values() if isinstance(found, dict) else found:
        check_depth(value, left - 1)


def tidy(plain: Any) -> Any:
    """The same data for tables and pages: keys are texts, and what is no text, finite number, list or mapping is text.

    >>> tidy({1: [float("nan"), 2.5, None]})
    {'1': ['nan', 2.5, None]}
    """
    if isinstance(plain, dict):
        return {str(key): tidy(value) for key, value in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [tidy(value) for value in plain]
    kept = plain is None or isinstance(plain, (str, int)) or (isinstance(plain, float) and math.isfinite(plain))
    return plain if kept else str(plain)


def whole_number(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
