"""One card for every attack: its row of the table in docs/attacks/index.md, settings from the code, measured cost."""

import inspect
import json
import re
from functools import cache

from _site.settings import DOCS, ROOT, cells, formula, rows, table
from _site.tex import typeset, with_formulas
from rattle.attacks.ensemble import Ensemble
from rattle.attacks.registry import get_attack, list_attacks
from rattle.threat import Threat

MEASURED = (
    "CPU seconds on 200 CIFAR-10 images: ours {ours:.1f}, the reference package {reference:.1f} (means of seeds "
    "0 to 2, l_inf 2/255, a ResNet of 20 thousand weights, one thread of a 2-core machine without GPU; the ensemble's "
    "verdicts are the same on all 200 in each seed): [how it was measured](index.md#measured-against-the-reference)."
)
LINEAR = "A linear model whose optimum is known holds {it} to the contract of attacks (tests/support/attack_cases.py)"
REFERENCE = (
    "; settings are compared field by field with the reference authors' package `pyautoattack` 0.2.0, and what each "
    "part leaves with what it leaves there (tests/attacks/test_autoattack.py)"
)


@cache
def attack_rows() -> dict[str, list[str]]:
    """By name, what the table of attacks says: what it is, norms, settings."""
    text = (DOCS / "attacks" / "index.md").read_text(encoding="utf-8")
    lines = [cells(line) for line in text.splitlines() if line.startswith("| `")]
    return {name.strip("` "): line[1:] for line in lines if len(line) == 4 for name in line[0].split(",")}


def slug(attack: str) -> str:
    """An attack's name in the address of its card."""
    return attack.replace("+", "-and-")


@cache
def seconds() -> dict[str, dict[str, float]]:
    """By part of AutoAttack: CPU seconds, ours and the reference's, means over seeds."""
    measured = json.loads((ROOT / "reproduction" / "results" / "autoattack-cifar10.json").read_text())
    runs = [run["processor_seconds"] for run in measured["models"]["cifar10"]["runs"]]
    found = {
        part: {who: sum(run[who][part] for run in runs) / len(runs) for who in ("ours", "reference")}
        for part in runs[0]["ours"]
    }
    whole = {who: sum(part[who] for part in found.values()) for who in ("ours", "reference")}
    return {**found, "autoattack": whole}


def parts_of(name: str) -> list[list[str]]:
    """The row that names the parts of an ensemble, with links to those that have a card."""
    attack = get_attack(name, Threat())
    if not isinstance(attack, Ensemble):
        return []
    known = list_attacks()
    links = [f"[`{part}`]({slug(part)}.md)" if part in known else f"`{part}`" for part in attack.components()]
    return [["parts, in order", ", ".join(links)]]


def attack_card(name: str) -> str:
    """The card of an attack, in Markdown."""
    attack, kind = get_attack(name, Threat()), type(get_attack(name, Threat()))
    what, norms, *_ = attack_rows()[name]
    first, more = formula(kind)
    settings = [] if parts_of(name) else rows(attack, f"{name}.", skip=("threat",))
    source = (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n\n")[0]
    shown = [
        ["norms", norms],
        ["in Python", f'`rattle.get_attack("{name}", rattle.Threat(epsilon=8 / 255))`'],
        ["in the shell", f"`rattle evaluate RUN --attacks {name}`"],
        *parts_of(name),
    ]
    chunks = [
        f"# `{name}`",
        what if what.endswith(".") else what + ".",
        table(["", ""], shown),
        typeset(first),
        "\n\n".join(map(with_formulas, more.split("\n\n"))) if more else "",
        f"Defined in `{kind.__module__}.{kind.__name__}`: {' '.join(source.split())}",
        "## Settings",
        table(["setting", "default", "meaning"], [[f"`{key}`", value, meaning] for key, value, meaning in settings])
        if settings
        else "None: with other parts it would be another attack; run the parts by their own names.",
        "## Cost and check",
        MEASURED.format(**seconds()[name]) if name in seconds() else "Its time was not measured separately.",
        LINEAR.format(it="its parts" if parts_of(name) else "it")
        + (REFERENCE if re.match("apgd|fab|square|autoattack", name) else "")
        + ".",
    ]
    return "\n\n".join(chunk for chunk in chunks if chunk) + "\n"


def attack_index(text: str) -> str:
    """The page of attacks with links from its table to the cards."""
    for name in list_attacks():
        text = re.sub(rf"(^\|[^|]*)`{re.escape(name)}`", rf"\1[`{name}`]({slug(name)}.md)", text, flags=re.MULTILINE)
    return text
