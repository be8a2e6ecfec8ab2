"""A tutorial as an executed notebook: its text, its code, and what `tutorials.py --write` saw it print and draw."""

import base64
import re
from pathlib import Path
from typing import Any

from _site.tutorials import IMAGES, SMALL, blocks

LINK = re.compile(r"(?<!!)\[([^]]*)\]\([^)]*\)")  # whose targets are pages of the site
PICTURE = re.compile(rf"{IMAGES.pattern}\n*")


def notebook(text: str, images: Path) -> dict[str, Any]:
    """The page as nbformat 4.5. A picture that the code draws is the output of the cell before it."""
    cells: list[dict[str, Any]] = []
    end = 0
    found = [block for block in blocks(text) if block.runs]  # the others stay in the text
    for block, start in zip([*found, None], [*(block.match.start() for block in found), len(text)], strict=True):
        words = SMALL.sub("", text[end:start])
        for name in IMAGES.findall(words):
            png = base64.b64encode((images / name).read_bytes()).decode()
            data = {"image/png": png}
            cells[-1]["outputs"].append({"output_type": "display_data", "data": data, "metadata": {}})
        words = LINK.sub(r"\1", PICTURE.sub("", words)).strip()
        if words:
            cells.append({"cell_type": "markdown", "metadata": {}, "source": words})
        if block is None:
            break
        code = block.code.rstrip("\n")
        if block.language == "bash":
            code = "\n".join(f"!{line}" for line in code.splitlines())
        outputs = []
        if block.match[4]:
            outputs.append({"output_type": "stream", "name": "stdout", "text": block.match[4]})
        number = sum(cell["cell_type"] == "code" for cell in cells) + 1
        cell = {"cell_type": "code", "metadata": {}, "execution_count": number, "source": code, "outputs": outputs}
        cells.append(cell)
        end = block.match.end()
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
