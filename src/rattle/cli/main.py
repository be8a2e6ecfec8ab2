"""The command line: find the command, run it, turn a user's mistake into one sentence and exit code 2.

Only the command that is called is imported, so `rattle --help` and a mistyped command answer at once.
"""

import difflib
import importlib
import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from rattle.errors import RattleError, first_line, is_out_of_memory
from rattle.runs.paths import printable
from rattle.training.signals import StoppedBySignal

COMMANDS = {
    "demo": "train TRADES and TRADES + Taylor terms on the embedded digits, compare them (two minutes)",
    "train": "train a recipe, or `custom` images and networks: rattle train digits-linf-cnn-trades --out runs/a",
    "sweep": "train a grid of settings and seeds: rattle sweep RECIPE --objective.taylor.eta 0.1 0.2 --seeds 0 1",
    "evaluate": "attack a run or checkpoint: rattle evaluate runs/a --attacks pgd20 cw20",
    "transfer": "attack one model with another's adversarial examples: rattle transfer --from runs/at --to runs/a",
    "fidelity": "does the Taylor expansion hold? its remainder against sigma: rattle fidelity runs/a",
    "gap": "does the KL go with the gap between clean and adversarial loss? the paper's Appendix C: rattle gap runs/a",
    "export": "write a trained model as safetensors, TorchScript or ONNX: rattle export runs/a",
    "push": "publish a run on the Hugging Face hub with its model card: rattle push runs/a owner/name",
    "data": "get a dataset or show what one holds: rattle data get cifar10, rattle data show digits",
    "landscape": "draw the loss around images and weights: rattle landscape runs/a runs/b",
    "report": "one HTML page of runs, offline: rattle report runs/a runs/b --out report.html",
    "compare": "which model is better? paired tests on the same images: rattle compare plain.pt-results runs/a",
    "table": "runs as a Markdown, LaTeX or CSV table, mean and deviation over seeds",
    "paper": "a table of the paper, trained, attacked, beside the published numbers: rattle paper 1 --scale tiny",
    "recipes": "tell the methods, and list the named recipes",
    "doctor": "check the installation",
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {command:<{width}}  {line}" for command, line in COMMANDS.items())
    return (
        "usage: rattle COMMAND [options]\n\n"
        "Train image classifiers that resist adversarial examples, and measure how well they do.\n\n"
        f"{commands}\n\n`rattle COMMAND --help` documents a command; `rattle --version` prints the version."
    )


def main(argv: list[str] | None = None, *, alone: bool = False) -> int:
    """Run one command; returns its exit code. alone: the process is the command's own, and may end with it."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] == "--version":
        from rattle import __version__

        print(f"rattle {__version__}")
        return 0
    if args[0] not in COMMANDS:
        close = difflib.get_close_matches(args[0], COMMANDS, n=1)
        hint = f"did you mean `rattle {close[0]}`?" if close else f"the commands are {', '.join(COMMANDS)}."
        return fail(f"unknown command {args[0]!r}; {hint}")
    return execute(args[0], args[1:], alone=alone)


def execute(command: str, args: list[str], *, alone: bool) -> int:
    """Run a command with the words after it; its exit code. Every mistake of a user ends in one sentence."""
    warnings.formatwarning = lambda message, *_: f"warning: {printable(str(message))}\n"  # without file and line
    os.umask(os.umask(0o77) | 0o02)  # nothing that is written is writable by everybody
    try:
        if alone:
            keep_memory()
        call(command, args)
    except RattleError as mistake:
        return wait_for_words() if mistake.told else fail(str(mistake))
    except StoppedBySignal as stop:
        print(f"rattle: {printable(str(stop))}", file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `rattle recipes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as reason:
        if reason.filename is None:  # of a stream, see `run`
            raise
        return fail(f"cannot use {reason.filename}: {reason.strerror}")
    return 0


def call(command: str, args: list[str]) -> None:
    """Run a command; memory that runs out is a user's mistake too."""
    try:
        importlib.import_module(f"rattle.cli.{command}").main(args)
    except (MemoryError, RuntimeError) as reason:
        if not is_out_of_memory(reason):
            raise
        advice = "take a smaller --batch-size; what was saved is intact"
        raise RattleError(f"out of memory ({first_line(reason)}): {advice}") from reason


def wait_for_words() -> int:
    """Of a mistake that the first rank prints: torchrun ends the others as soon as one has ended."""
    time.sleep(2)
    return 2


def fail(sentence: str) -> int:
    with suppress(OSError):  # where stderr is closed or full, the exit code says it
        print(f"rattle: {printable(sentence)}", file=sys.stderr)
    return 2


def keep_memory() -> None:
    """Have glibc keep the memory of large tensors for the next ones, as evaluation's other processes do.

    It would return each to the system and get it back zeroed: up to half of a small network's forward pass goes there
    (docs/studies/performance.md). Whoever sets MALLOC_MMAP_MAX_ has the word; other systems' allocators are left alone.
    """
    if sys.platform != "linux" or "MALLOC_MMAP_MAX_" in os.environ:
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for setting, value in ((-4, 0), (-1, 2**31 - 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD
        if mallopt is not None:
            mallopt(setting, value)


def run() -> int:
    """`main` as a program: what is printed fits any locale, and the last of it is on its way when this returns."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (until the process ends)
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # LANG=C, names that are not UTF-8
    ranks = os.environ.get("WORLD_SIZE", "1") != "1"
    if not ranks:  # a rank that waits for others inside gloo would not come to hear of it
        signal.signal(signal.SIGTERM, stop)
    code = 0
    try:
        code = main(alone=True)
        sys.stdout.flush()
    except OSError as reason:  # a full disk, or a pipe that nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(reason, BrokenPipeError):
            code = fail(f"cannot write to stdout: {reason.strerror or reason}; files that were written are whole")
    if ranks:
        leave(code)
    return code


def stop(number: int, _: FrameType | None) -> NoReturn:
    """End the program by a signal while no training listens for it, such as during imports: in words, cleaning up."""
    with suppress(OSError):
        os.write(2, f"rattle: stopped by {signal.Signals(number).name}; what was saved is intact\n".encode())
    sys.exit(128 + number)


def leave(code: int) -> NoReturn:
    """End a rank without taking the interpreter apart.

    A thread of gloo may still be letting go of the last message. It needs the GIL for that, and an interpreter that
    is being taken apart ends such a thread in a way that aborts the process, after the work is done.
    """
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)
