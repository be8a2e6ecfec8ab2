"""rattle data: download a dataset from its official URL, or show what it holds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rattle import data
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse
from rattle.errors import RattleError, unknown
from rattle.runs.io import new_file
from rattle.runs.paths import slugify

USAGE = """usage: rattle data get NAME [--root DIR]     download from the official URL, checked
       rattle data show NAME [--out PNG]     shapes, class balance, and a contact sheet

NAME is {}; `show` also takes FILE.npz, a FOLDER or hub:OWNER/NAME.
"""


@dataclass(frozen=True)
class Get:
    """Download a dataset; an interrupted download resumes, a wrong checksum is refused."""

    name: Annotated[str, tyro.conf.Positional]
    root: str | None = None  # folder to put it under; RATTLE_DATA, or ./data, when not given


@dataclass(frozen=True)
class Show:
    """Print a dataset's shapes and class balance and save a contact sheet."""

    name: Annotated[str, tyro.conf.Positional]
    root: str | None = None  # folder that holds datasets; RATTLE_DATA, or ./data, when not given
    out: str = ""  # PNG file to write; NAME-contact-sheet.png in the current folder when not given
    overwrite: bool = False  # replace the PNG file if it is there
    resize: int | None = None  # side to scale the images to
    crop: int | None = None  # decode a folder on the fly and show the centre of this side

    @property
    def source(self) -> data.Data:
        return data.Data(name=self.name, root=self.root, resize=self.resize, crop=self.crop)


def main(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(USAGE.format(", ".join(data.list_datasets())))
        return
    options = read(args)
    get(options) if isinstance(options, Get) else show(options)


def read(args: list[str]) -> Get | Show:
    """The options; raises RattleError for what can be told without the images."""
    if args[0] == "get":
        return parse(Get, args[1:], "data get")
    if args[0] != "show":
        raise unknown("rattle data", args[0], ["get", "show"])
    options = parse(Show, args[1:], "data show")
    if options.out and not options.out.lower().endswith(".png"):
        raise RattleError(f"--out must be a .png file, got {options.out}")
    options.source.find()
    return options


def get(options: Get) -> None:
    paths = data.get(options.name, options.root, progress=Console().progress)
    say("\n".join(map(str, paths)) if paths else f"{options.name} needs no download")


def show(options: Show) -> None:
    out = new_file(options.out or f"{slugify(Path(options.name).stem)}-contact-sheet.png", options.overwrite)
    dataset = options.source.source()
    for header, *rows in (data.describe(dataset), data.balance(dataset)):
        print_table(header, rows)
    say(f"contact sheet: {data.contact_sheet(dataset, out)}")
