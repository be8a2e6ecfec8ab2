"""What mkdocs does besides: cards from the registries, files outside of docs/ that pages link to, decisions listed.

`mkdocs build --strict` fails on every warning that is logged here.
"""

import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[1]))

from _site.attack_cards import attack_card, attack_index, slug
from _site.method_cards import method_card, method_index
from _site.notebook import notebook
from _site.public import undocumented
from _site.settings import DOCS, ROOT
from rattle.attacks.registry import list_attacks
from rattle.objectives.registry import METHODS

log = logging.getLogger("mkdocs.hooks.rattle")
LINK = re.compile(r"\]\(([^()\s#]+)(#[^()\s]*)?\)")
OUTSIDE = "files"  # where files that are not pages lie in the site
MOVED = {"tutorials/harden.html": "guides/harden.html"}  # former addresses of pages


def decisions() -> list[tuple[str, str]]:
    """File and title of every decision record."""
    paths = sorted((DOCS / "adr").glob("0*.md"))
    return [(path.name, path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")) for path in paths]


def moved_to(address: str) -> str:
    """A page that leads to another one."""
    refresh = f'<meta http-equiv="refresh" content="0; url={address}">'
    return f'<!doctype html>{refresh}<a href="{address}">This page has moved.</a>\n'


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def generated() -> dict[str, str]:
    """Pages that no file holds, by their place in docs/."""
    listed = "\n".join(f"- [{title}]({name})" for name, title in decisions())
    return {
        **{f"methods/{name}.md": method_card(name) for name in METHODS},
        **{f"attacks/{slug(name)}.md": attack_card(name) for name in list_attacks()},
        "guides/harden.ipynb": json.dumps(notebook(read("guides/harden.md"), DOCS / "images"), indent=1),
        **{old: moved_to(os.path.relpath(new, Path(old).parent)) for old, new in MOVED.items()},
        "adr/index.md": f"# Decisions\n\nOne page for each decision that a reader would question.\n\n{listed}\n",
    }


def on_config(config: Any) -> Any:
    """Add cards to the navigation, where mkdocs.yml has the sections that they belong to."""
    entries = {
        "Methods": [{name: f"methods/{name}.md"} for name in METHODS],
        "Attacks": [{name: f"attacks/{slug(name)}.md"} for name in list_attacks()],
    }
    for section in config.nav:
        ((title, pages),) = section.items()
        if title in entries:
            pages.extend(entries[title])
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the generated pages, and copies of the files outside of docs/ that pages link to."""
    for name in undocumented():
        log.warning(f"the public name {name} has no docstring")
    for place, text in generated().items():
        files.append(File.generated(config, place, content=text))
    for file in [file for file in files if file.is_documentation_page()]:
        for target, _ in LINK.findall(file.content_string):
            path = outside(file.src_uri, target)
            if path is not None and path.is_file() and files.get_file_from_path(place_of(path)) is None:
                files.append(File.generated(config, place_of(path), abs_src_path=str(path)))
    return files


def outside(page: str, target: str) -> Path | None:
    """The file that a link means, when it lies in the repository and outside of docs/."""
    if "://" in target or target.startswith("mailto:"):
        return None
    path = (DOCS / page).parent.joinpath(target).resolve()
    return None if path.is_relative_to(DOCS) or not path.is_relative_to(ROOT) else path


def place_of(path: Path) -> str:
    """Where a file of the repository lies in the site; pages of it as text, since they are no part of this site."""
    name = path.relative_to(ROOT).as_posix()
    return f"{OUTSIDE}/{name}" + (".txt" if path.suffix in (".md", ".py") else "")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links to the copies instead of the files, links from the tables to the cards."""
    uri = page.file.src_uri
    if uri == "methods/index.md":
        markdown = method_index()
    if uri == "attacks/index.md":
        markdown = attack_index(markdown)

    def link(match: re.Match) -> str:
        path = outside(uri, match[1])
        if path is None or not path.is_file():
            return match[0]
        return f"]({os.path.relpath(place_of(path), Path(uri).parent)})"

    return LINK.sub(link, markdown)
