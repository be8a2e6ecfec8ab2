"""Mistakes a user can mend: one exception, whose text is the whole message."""

import difflib
from collections.abc import Iterable


class RattleError(ValueError):
    """An error that the caller can correct. The command line prints it as one sentence and exits with code 2."""

    told = False  # another rank of the job prints it


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type when it has no message.

    >>> first_line(AssertionError())
    'AssertionError'
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, a device's, or the host's, which torch and oneDNN report in their own words."""
    words = ("out of memory", "allocate memory", "could not create a primitive", "can't start new thread")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in str(error) for w in words))


def unknown(kind: str, name: str, valid: Iterable[str]) -> RattleError:
    """An error for a name that is not among the valid ones; it names the nearest and, when they are few, all."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listing = f" (one of {', '.join(names)})" if len(names) <= 12 else ""
    return RattleError(f"unknown {kind} {name!r}{hint}{listing}")
