"""rattle data: download a dataset from its official URL, or show it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse
from rattle.data.sources import URLS, check_source, list_datasets
from rattle.errors import RattleError, unknown
from rattle.runs.io import new_file
from rattle.runs.paths import slugify

NAME_HELP = f"{', '.join(list_datasets())}; `show` also takes FILE.npz, a FOLDER or hub:OWNER/NAME"


@dataclass(frozen=True)
class Options:
    """`get` downloads a dataset from its official URL; a wrong checksum is refused.
    `show` prints shapes and class balance and saves a contact sheet."""

    action: Annotated[Literal["get", "show"], tyro.conf.Positional]
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help=NAME_HELP)]
    root: str | None = None  # folder of the datasets; RATTLE_DATA, or ./data, when not given
    out: str = ""  # show: PNG file to write; NAME-contact-sheet.png in the current folder when not given
    overwrite: bool = False  # show: replace the PNG file if it is there
    resize: int | None = None  # show: side to scale the images to
    crop: int | None = None  # show: decode a folder on the fly and take the centre of this side


def main(args: list[str]) -> None:
    options = parse(Options, args or ["--help"], "data")
    if options.action == "get":
        download(options)
    else:
        show_dataset(options)


def download(options: Options) -> None:
    if options.name not in (*list_datasets(), *URLS):
        raise unknown("dataset to download", options.name, URLS)
    from rattle.data.download import get

    paths = get(options.name, options.root, progress=Console().progress)
    say("\n".join(map(str, paths)) if paths else f"{options.name} needs no download")


def show_dataset(options: Options) -> None:
    if options.out and not options.out.lower().endswith(".png"):
        raise RattleError(f"--out must be a .png file, got {options.out}")
    check_source(options.name)
    from rattle.data.registry import Data
    from rattle.data.show import balance, contact_sheet, describe_parts

    out = new_file(options.out or f"{slugify(Path(options.name).stem)}-contact-sheet.png", options.overwrite)
    dataset = Data(name=options.name, root=options.root, resize=options.resize, crop=options.crop).source()
    for header, *rows in (describe_parts(dataset), balance(dataset)):
        print_table(header, rows)
    say(f"contact sheet: {contact_sheet(dataset, out)}")
