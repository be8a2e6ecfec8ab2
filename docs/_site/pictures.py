"""Pictures of the start page that no tutorial makes: the loss around an image, the terminal, the page of an experiment.

python docs/_site/pictures.py landscape
python docs/_site/pictures.py terminal CAPTURE       # what `tmux capture-pane -p -e` printed of a training
python docs/_site/pictures.py page SCREENSHOT.png    # of report.html, 1200 wide
"""

import re
import sys
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"


def landscape() -> None:
    """The zoo's plain and TRADES networks around the same two test images, on one scale."""
    import torch

    import rattle
    from rattle.analysis.landscape import input_plane, input_surface
    from rattle.analysis.plots import input_surfaces

    models = {name: rattle.load(f"zoo:digits-linf-cnn-{name}") for name in ("plain", "trades")}
    test = rattle.Recipe().data.load().test
    x, y = test.x[:3] / 255, test.y[:3]
    plane = input_plane(models["plain"], x, y, radius=0.4, generator=torch.Generator().manual_seed(0))
    figure = input_surfaces({name: input_surface(model, x, y, plane) for name, model in models.items()})
    figure.savefig(IMAGES / "landscape.png", dpi=70, facecolor="white")


def terminal(capture: str) -> None:
    """A capture with its colours as SVG, in the reader's own fonts."""
    from rich.console import Console
    from rich.text import Text

    lines = Path(capture).read_text(encoding="utf-8").rstrip("\n")
    console = Console(record=True, width=84, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Text.from_ansi(lines))
    svg = re.sub(r"@font-face \{.*?\}\n?", "", console.export_svg(title="rattle train"), flags=re.DOTALL)
    monospace = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    (IMAGES / "terminal.svg").write_text(svg.replace("Fira Code, monospace", monospace), encoding="utf-8")


def page(screenshot: str) -> None:
    """A screenshot in fewer colours, so that it stays small."""
    from PIL import Image

    picture = Image.open(screenshot).convert("RGB").crop((0, 0, 1200, 980)).quantize(96)
    picture.save(IMAGES / "report.png", optimize=True)


if __name__ == "__main__":
    {"landscape": landscape, "terminal": terminal, "page": page}[sys.argv[1]](*sys.argv[2:])
