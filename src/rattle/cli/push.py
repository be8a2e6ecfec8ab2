"""rattle push: publish a run on the Hugging Face hub, or write what would be published to a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rattle.cli.console import say
from rattle.cli.options import RunPath, check_exists, parse


@dataclass(frozen=True)
class Options:
    """Publish a trained model: weights, config, a model card with its results and recipe, and the page.
    `rattle.load("hf:OWNER/NAME")` and `rattle evaluate hf:OWNER/NAME` open it. It uses HF_TOKEN, or the hub's login."""

    path: RunPath  # a run folder or a checkpoint file
    name: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="OWNER/NAME", help="the repository on the hub; created if it does not exist"),
    ]
    private: bool = False  # make a new repository private
    revision: str | None = None  # the branch to upload to; main when not given
    license: str = "unknown"  # the model's licence, for its card: mit, cc-by-4.0, ...
    to: str = ""  # write the folder here instead, and use no network
    page: bool = True  # --no-page: leave out report.html, which may show some of the test images
    raw: bool = False  # publish the raw weights of a run that averages them


def main(args: list[str]) -> None:
    options = parse(Options, args, "push")
    check_exists(options.path)
    from rattle.publish.folder import write_folder
    from rattle.publish.push import push
    from rattle.runs.hub import check_repository

    check_repository(options.name)
    shared = {"license": options.license, "page": options.page, "averaged": not options.raw}
    if options.to:
        for sentence in write_folder(options.path, options.to, options.name, **shared):
            warn(sentence)
        size = sum(file.stat().st_size for file in Path(options.to).rglob("*") if file.is_file())
        say(f'wrote {options.to} ({size / 1e6:.1f} MB); try it with: rattle.load("{options.to}")')
        return
    address = push(options.path, options.name, private=options.private, revision=options.revision, note=warn, **shared)
    say(f'published as {address}\nload it with: rattle.load("hf:{options.name}")')


def warn(sentence: str) -> None:
    say(f"warning: {sentence}", stderr=True)
