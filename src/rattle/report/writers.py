"""Tables as text in Markdown, LaTeX and CSV. Cells are plain text: every writer escapes for its own format."""

import csv
import io
from collections.abc import Iterable, Sequence

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"} | {
    mark: f"\\{mark}" for mark in "&%$#_{}"
}


class Bold(str):
    """The text of a cell that is printed bold where the format can do it."""


def escape_markdown(text: str) -> str:
    """Text that GitHub's Markdown shows as it is, also inside a table."""
    for mark in ("\\", "|", "*", "_", "`", "["):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;").replace("\n", " ")


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(LATEX.get(mark, mark) for mark in text)


def escape_csv(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """A table in GitHub's Markdown, ending in a newline.

    `columns` are the headings, `rows` the cells in the same order; the first `left` columns are aligned to the left and
    the others to the right.
    """
    lines = [[escape_markdown(column) for column in columns], ["---"] * left + ["---:"] * (len(columns) - left)]
    for row in rows:
        texts = [escape_markdown(cell) for cell in row]
        lines.append([f"**{text}**" if isinstance(cell, Bold) else text for cell, text in zip(row, texts, strict=True)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int, comments: Sequence[str] = ()
) -> str:
    """A booktabs table, ending in a newline; needs \\usepackage{booktabs}.

    Arguments as of `markdown_table`; each of `comments` becomes a comment line before the table.
    """
    lines = [f"% {comment}".replace("\n", " ") for comment in comments]
    lines += [rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(columns) - left)}}}", r"\toprule"]
    lines += [" & ".join(map(escape_latex, columns)) + r" \\", r"\midrule"]
    for row in rows:
        texts = [escape_latex(cell) for cell in row]
        bold = [
            rf"\textbf{{{text}}}" if isinstance(cell, Bold) else text for cell, text in zip(row, texts, strict=True)
        ]
        lines.append(" & ".join(bold) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def csv_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Comma-separated values, one line a row; the first cell of a row is a name, the others are numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_csv, columns))
    writer.writerows([escape_csv(row[0]), *row[1:]] for row in rows)
    return out.getvalue()
