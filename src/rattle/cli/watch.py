"""rattle watch: follow a run in the terminal, while it trains and after."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rattle.cli.console import say
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.report.live import epoch_line, progress, view
from rattle.runs.paths import Run

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Options:
    """Follow a run: curves, current terms, time left. q leaves. Without a terminal: a line an epoch, until it ends.
    A run that has not begun is waited for."""

    run: Annotated[str, tyro.conf.Positional]  # a run folder
    once: bool = False  # show it as it is now, and leave
    every: float = 1.0  # seconds between two reads of the run


def main(args: list[str]) -> None:
    from rich.console import Console

    options = parse(Options, args, "watch")
    if not options.every > 0:
        raise RattleError(f"--every must be > 0, got {options.every}")
    console = Console()
    if not options.once:
        wait(Path(options.run), options.every)
    if options.once:
        console.print(view(progress(options.run), width=console.width, live=False))
    elif console.is_terminal:
        draw(options, console)
    else:
        follow(options)


def wait(folder: Path, every: float) -> None:
    """Until the run begins; returns at once if it has, or if the folder holds something else."""
    run, said = Run(folder), False
    while not run.exists() and (run.lock.exists() or not folder.is_dir() or not any(folder.iterdir())):
        if not said:
            near = difflib.get_close_matches(
                folder.name, [path.parent.name for path in folder.parent.glob("*/recipe.yaml")]
            )
            hint = f"; there is {folder.parent / near[0]}" if near else ""
            say(f"waiting for a run in {folder}{hint} (Ctrl-C leaves)", stderr=True)
            said = True
        time.sleep(every)


def draw(options: Options, console: Console) -> None:
    """Redraw the screen until q is pressed, also after the run's end, since it may be resumed."""
    from rich.live import Live

    with keys() as pressed, Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(view(progress(options.run), width=console.width), refresh=True)
            if pressed(options.every) in ("q", "Q", "\x03"):
                break
    console.print(view(progress(options.run), width=console.width, live=False))


def follow(options: Options) -> None:
    """Print a line for every epoch; after a resume from an earlier epoch, print from there again."""
    printed = 0
    while True:
        state = progress(options.run)
        printed = min(printed, state.done)
        for entry in state.run.metrics:
            if int(entry["epoch"]) > printed:
                say(epoch_line(entry, state.epochs))
        printed = state.done
        if state.ended:
            say(state.status)
            return
        time.sleep(options.every)


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits some seconds for a key and returns it, or ""; restores the terminal's mode afterwards."""
    if sys.platform == "win32" or not sys.stdin.isatty():  # there Ctrl-C leaves
        yield lambda seconds: time.sleep(seconds) or ""
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
