"""Mistakes a user can mend: one exception, whose text is the whole message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RattleError(ValueError):
    """Something the caller can put right. The command line prints it as one sentence and exits with code 2."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> RattleError:
    """An error for a name that is not among the valid ones; it names the nearest and, when they are few, all."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listing = f" (one of {', '.join(names)})" if len(names) <= 12 else ""
    return RattleError(f"unknown {kind} {name!r}{hint}{listing}")
