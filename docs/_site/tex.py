"""TeX of the formulas in docstrings, which are written in plain letters: `beta/4 KL(p(x) || p(x'))`."""

import re

GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "eta", "lambda", "phi", "sigma"}
FUNCTIONS = {"BCE", "CE", "KD", "KL", "MSE", "clip", "log", "max", "mean", "project", "softmax", "steepest", "sum"}
SYMBOLS = {"grad": r"\nabla", "sum": r"\sum", "max": r"\max", "log": r"\log", "with": r"\quad\text{with}\quad"}
SIGNS = {"<-": r"\leftarrow", "!=": r"\ne", "*": r"\cdot", " ~ ": r" \sim ", " || ": r" \,\Vert\, "}
WORD = re.compile(r"(?<![\\A-Za-z])(?:Taylor terms|([A-Za-z]+)(\d*)(?:_(\{[^}]*\}|[A-Za-z]+))?([~^](?![\w(]))?)")
ENDS = re.compile(r"; |: |, (?=x' |where|both|`)| \((?=Algorithm|[A-Z][a-z]+ et al)|\.$")
KNOWN = re.compile(r"\b(?:CE|KL|BCE|MSE|KD|clean)\b|<-")


def symbol(match: re.Match) -> str:
    """A name with its index and hat."""
    name, digits, index, hat = match.groups()
    if name is None:
        return rf"\text{{{match[0]}}}"
    if index and len(name) > 1 and name not in GREEK | FUNCTIONS:  # the name of a setting
        return rf"\text{{{name} {index}}}\,"
    if name in SYMBOLS:
        shown = SYMBOLS[name]
    elif name in FUNCTIONS:
        shown = rf"\operatorname{{{name}}}"
    elif name in GREEK:
        shown = rf"\{name}"
    else:
        shown = name if len(name) == 1 else rf"\text{{{name}}}\,"
    below = (index or digits).strip("{}").replace("!=", r"\ne ")
    if len(below) > 2 and below.isalpha():
        below = rf"\text{{{below}}}"
    shown = {"^": rf"\hat{{{shown}}}", "~": rf"\tilde{{{shown}}}"}.get(hat or "", shown)
    return shown + (f"_{{{below}}}" if below else "")


def tex(formula: str) -> str:
    """A formula in plain letters as TeX."""
    found = WORD.sub(symbol, formula)
    for plain, sign in SIGNS.items():
        found = found.replace(plain, sign)
    found = re.sub(r"\|\|(.+?)\|\|", r"\\lVert \1 \\rVert ", found)
    return re.sub(r"\(?(?<![\w}])(\d|\\[a-z]+)/(\d|\\[a-z]+)(?![\w{])\)?", r"\\tfrac{\1}{\2}", found)


def split(paragraph: str) -> tuple[str, str]:
    """The formula that a paragraph begins with, none if it is prose, and the words after it."""
    if not KNOWN.search(paragraph):
        return "", paragraph
    end = ENDS.search(paragraph)
    if end is None:
        return paragraph, ""
    return paragraph[: end.start()], paragraph[end.start() :].strip("; :,.")


def typeset(paragraph: str) -> str:
    """A paragraph in Markdown: its formula as a block, then its words as a sentence."""
    formula, words = split(paragraph)
    if not formula:
        return words
    words = words.removeprefix("(").removesuffix(")") if words.startswith("(") else words
    if re.match(r"[a-z]{2}", words):
        words = words[0].upper() + words[1:]
    return f"\\[{tex(formula)}\\]" + (f"\n\n{words}." if words else "")


def with_formulas(paragraph: str) -> str:
    """A paragraph in Markdown, with those of its sentences typeset that are equations."""
    sentences = paragraph.removesuffix(".").split(". ")
    return ". ".join(rf"\({tex(text)}\)" if is_equation(text) else text for text in sentences) + "."


def is_equation(text: str) -> bool:
    return " = " in text and {*re.findall(r"[A-Za-z]{3,}", text)} <= GREEK | FUNCTIONS
