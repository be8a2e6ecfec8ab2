"""Tutorials are run: every block of Python and every command of a page, in order, in one folder.

python docs/_site/tutorials.py docs/guides/harden.md --write

puts what each block printed into the `text` block below it, and the pictures that the page shows into docs/images.
A block whose first line is `# needs ...` (GPUs, SLURM, the network) is left out; one whose first line is `# NAME.py` is
saved under that name. A page may say how it is made small for the tests: `<!-- small: --epochs 12 -> --epochs 1 -->`.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:(\n```text\n)(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w-]+\.py)\n")  # the first line of a block that a reader saves
SMALL = re.compile(r"<!-- small: (.+?) -> (.+?) -->")
IMAGES = re.compile(r"!\[[^]]*\]\(\.\./images/([\w.-]+)\)")


@dataclass(frozen=True)
class Block:
    """What a page asks its reader to run."""

    language: str
    code: str
    match: re.Match

    @property
    def runs(self) -> bool:
        return not self.code.startswith("# needs ")


def blocks(text: str) -> list[Block]:
    return [Block(match[1], match[2], match) for match in BLOCK.finditer(text)]


def fences(text: str) -> list[tuple[str, str]]:
    """Language and content of every fenced block of a page, whatever its indentation."""
    found: list[tuple[str, list[str]]] = []
    fence = None
    for line in text.splitlines():
        mark = re.fullmatch(r"( *)```(.*)", line)
        if fence is None and mark:
            fence = mark[1]
            found.append((mark[2].strip(), []))
        elif fence is not None and line == f"{fence}```":
            fence = None
        elif fence is not None:
            found[-1][1].append(line.removeprefix(fence))
    return [(language, "\n".join(lines)) for language, lines in found]


def made_small(text: str) -> str:
    """The page with fewer epochs and images, as it says itself; a replacement that replaces nothing is an error."""
    for old, new in SMALL.findall(text):
        rest = SMALL.sub("", text)
        if old not in rest:
            raise ValueError(f"the page has no {old!r} to make small")
        text = "".join(
            part if part.startswith("<!-- small") else part.replace(old, new)
            for part in re.split(r"(<!-- small: .+? -->)", text)
        )
    return text


def run_command(line: str) -> None:
    """One line of the shell: rattle in this process, torchrun in its own ones."""
    from rattle.cli.main import main

    words = shlex.split(line, comments=True)
    if words[0] == "torchrun":
        words = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        print(done.stdout, end="")
        code = done.returncode
    elif words[0] == "rattle":
        code = main(words[1:])
    else:
        raise ValueError(f"no test runs {line!r}; begin its block with `# needs ...`")
    if code:
        raise RuntimeError(f"exit code {code} of {line!r}")


def run_block(block: Block, names: dict) -> str:
    """What it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        file = FILE.match(block.code)
        if file:
            Path(file[1]).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.code, "tutorial", "exec"), names)
        else:
            for line in re.sub(r"\\\n\s*", "", block.code).splitlines():
                if line.strip() and not line.startswith("#"):
                    run_command(line)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def run_page(text: str, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run a page in a folder; the blocks that ran, with what they printed."""
    before = Path.cwd()
    os.chdir(folder)
    names: dict = {"__name__": "__main__"}
    try:
        for block in blocks(text):
            if block.runs:
                yield block, run_block(block, names)
    finally:
        os.chdir(before)


def write(page: Path) -> None:
    """Run the page whole, and put what was printed and drawn into it."""
    text = page.read_text(encoding="utf-8")
    images = page.parents[1] / "images"
    with tempfile.TemporaryDirectory() as place:
        new = text
        for block, printed in run_page(text, Path(place)):
            if block.match[3]:
                new = new.replace(
                    block.match[0], f"```{block.language}\n{block.code}```\n{block.match[3]}{printed}```\n"
                )
        for name in IMAGES.findall(text):
            if (Path(place) / name).exists():
                shutil.copy(Path(place) / name, images / name)
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="put outputs and pictures into the page")
    options = parser.parse_args()
    if options.write:
        write(options.page)
    else:
        with tempfile.TemporaryDirectory() as place:
            for _, printed in run_page(options.page.read_text(encoding="utf-8"), Path(place)):
                print(printed)
