"""rattle watch: follow a run in the terminal, while it trains and after."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.report.live import epoch_line, progress, view

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Options:
    """Follow a run: curves, current terms, time left. q leaves. Without a terminal: a line an epoch, until it ends."""

    run: Annotated[str, tyro.conf.Positional]  # a run folder
    once: bool = False  # show it as it is now, and leave
    every: float = 1.0  # seconds between looks


def main(args: list[str]) -> None:
    from rich.console import Console

    options = parse(Options, args, "watch")
    if not options.every > 0:
        raise RattleError(f"--every must be > 0, got {options.every}")
    console = Console()
    if options.once:
        console.print(view(progress(options.run), width=console.width, live=False))
    elif console.is_terminal:
        draw(options, console)
    else:
        follow(options)


def draw(options: Options, console: Console) -> None:
    """A screen that is redrawn; it stays after the run's end, as a resumed run goes on."""
    from rich.live import Live

    with keys() as pressed, Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(view(progress(options.run), width=console.width), refresh=True)
            if pressed(options.every) in ("q", "Q", "\x03"):
                break
    state = progress(options.run)
    console.print(view(state, width=console.width, live=False))


def follow(options: Options) -> None:
    """A line for every epoch; a run whose epochs were cut back by a resume is told again from there."""
    told = 0
    while True:
        state = progress(options.run)
        told = min(told, state.done)
        for entry in state.metrics:
            if int(entry["epoch"]) > told:
                print(epoch_line(entry, state.epochs), flush=True)
        told = state.done
        if state.ended:
            print(state.status, flush=True)
            return
        time.sleep(options.every)


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key and gives it, or nothing; the terminal is put back afterwards."""
    try:
        import select
        import termios
        import tty
    except ImportError:  # no such terminals here: Ctrl-C leaves
        yield lambda seconds: time.sleep(seconds) or ""
        return
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds) or ""
        return
    before = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
