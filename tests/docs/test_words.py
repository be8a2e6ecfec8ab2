"""Words that the project no longer uses: pages, help texts, messages, docstrings, comments (docs/start/glossary.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RETIRED = {  # pattern: what to write
    r"(?<![.\w])(would )?tell(s|ing)?\b(?!\()": "says, shows, measures, distinguishes",
    r"\bha(s|ve|d) a say\b": "matters, contributes",
    r"\b(goes|go|going|went) on\b(?! to\b)": "continues, resumes",
    r"\bwhoever\b": "anyone who, all that",
    r"(?<!, three )(?<!, two )\bof which\b": "a new sentence",
    r"\bwhat would change\b": "limits, open questions",
    r"\b(nothing|what) is said\b": "the condition itself",
    r"(?<![.\w])processors?\b(?!\()": "CPU",
    r"\b(standard|and|the|no|one|of) deviations?\b": "std",
    r"\b(is|are|was|were|be) looked at\b": "read, checked, measured",
    r"\bworks? off\b": "splits, finishes",
    r"\bby the clock\b": "wall-clock time",
    r"\bby (itself|themselves)\b": "automatically, alone, independently",
    r"\bafresh\b": "again, from the start",
    r"\bon one footing\b": "under the same conditions",
    r"\bat hand\b": "available, given",
    r"\bso much of\b": "this fraction of",
    r"\banybody\b": "anyone",
    r"\bdecid(es?|ed) nothing\b": "allows no conclusion",
    r"\b(told apart|be told)\b": "distinguishable, shown",
    r"\bto (either|each|a) side\b": "±",
    r"\bbuys? nothing\b": "brings nothing",
    r"\bsurer\b(?!-)": "overconfident, more certain",
}
PAGES = [*ROOT.glob("*.md"), *(path for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts)]
OTHERS = {"CHANGELOG.md"}  # releases keep their words
CODE = [
    *(ROOT / "src" / "rattle").rglob("*.py"),
    *(ROOT / "examples").glob("*.py"),
    *(ROOT / "docs" / "_site").glob("*.py"),
]


ANY = re.compile("|".join(RETIRED), re.IGNORECASE)


def found(text: str) -> list[str]:
    """Line, word and replacement of every retired word."""
    if not ANY.search(text):
        return []
    lines = list(enumerate(text.splitlines(), 1))
    return [
        f"line {number}: {match[0]!r}, write {instead}"
        for pattern, instead in RETIRED.items()
        for number, line in lines
        for match in re.finditer(pattern, line, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", [p for p in PAGES if p.name not in OTHERS], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_has_no_retired_words(path: Path) -> None:
    assert found(path.read_text(encoding="utf-8")) == []


def test_help_messages_docstrings_and_comments_have_no_retired_words() -> None:
    problems = {str(path.relative_to(ROOT)): found(path.read_text(encoding="utf-8")) for path in CODE}
    assert {path: words for path, words in problems.items() if words} == {}


def test_the_linter_finds_words_and_leaves_code_alone() -> None:
    assert len(found("The table tells more.\nIt goes on, and the deviation is small.")) == 3
    assert (
        found("offset = file.tell()\nname = platform.processor()\ngoes on to say; processor_seconds; summary.deviation")
        == []
    )
