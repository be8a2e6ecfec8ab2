"""Tables as text in Markdown, LaTeX and CSV. Cells are plain text: every writer escapes for its own format."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence

from rattle.runs.paths import printable

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"} | {
    mark: f"\\{mark}" for mark in "&%$#_{}"
}


class Bold(str):
    """The text of a cell that is printed bold where the format can do it."""


def escape_markdown(text: str) -> str:
    """Text that GitHub's Markdown shows as it is, also inside a table."""
    text = printable(text.replace("\n", " "))
    for mark in ("\\", "|", "*", "_", "`", "["):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;")


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(LATEX.get(mark, mark) for mark in printable(text.replace("\n", " ")))


def escape_csv(text: str) -> str:
    """Text that a spreadsheet does not take for a formula; numbers stay."""
    text = printable(text.replace("\n", " "))
    # the last four are the wide forms of the first
    formula = text.lstrip().startswith(tuple("=+-@|%\uff1d\uff0b\uff0d\uff20"))
    return f"'{text}" if formula and not re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", text) else text


def escaped(cell: str, escape: Callable[[str], str], bold: str) -> str:
    return bold.format(escape(cell)) if isinstance(cell, Bold) else escape(cell)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """A table in GitHub's Markdown, ending in a newline.

    `columns` are the headings, `rows` the cells in the same order; the first `left` columns are aligned to the left and
    the others to the right.
    """
    lines = [[escape_markdown(column) for column in columns], ["---"] * left + ["---:"] * (len(columns) - left)]
    lines += [[escaped(cell, escape_markdown, "**{}**") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int, comments: Sequence[str] = ()
) -> str:
    """A booktabs table, ending in a newline; needs \\usepackage{booktabs}.

    Arguments as of `markdown_table`; each of `comments` becomes a comment line before the table.
    """
    lines = [printable(f"% {comment}".replace("\n", " ")) for comment in comments]
    lines += [rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(columns) - left)}}}", r"\toprule"]
    lines += [" & ".join(map(escape_latex, columns)) + r" \\", r"\midrule"]
    lines += [" & ".join(escaped(cell, escape_latex, r"\textbf{{{}}}") for cell in row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def csv_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Comma-separated values, one line a row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_csv, columns))
    writer.writerows(map(escape_csv, row) for row in rows)
    return out.getvalue()
