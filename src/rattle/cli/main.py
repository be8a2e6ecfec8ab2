"""The command line: find the command, run it, turn a user's mistake into one sentence and exit code 2.

Only the command that is called is imported, and it imports torch after it has checked names and paths.
"""

import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import NoReturn

from rattle import __version__
from rattle.cli.commands import COMMANDS, command_examples, usage
from rattle.errors import RattleError, first_line, is_out_of_memory, unknown
from rattle.runs.paths import printable
from rattle.runs.progress import StoppedBySignal


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Every mistake of a user ends in one sentence."""
    command, *args = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help", "help"):
        print(usage())
        return 0
    if command == "--version":
        print(f"rattle {__version__}")
        return 0
    if command.startswith("--tyro-"):
        print_completion([command, *args])
    if command not in COMMANDS:
        return fail(f"{unknown('command', command, COMMANDS)}; `rattle --help` lists all")
    if {"-h", "--help"} & {*args}:
        print(command_examples(command))
    warnings.formatwarning = lambda message, *_: f"warning: {printable(str(message))}\n"  # without file and line
    os.umask(os.umask(0o77) | 0o02)  # nothing that is written is writable by everybody
    try:
        import_module(f"rattle.cli.{command}").main(without_plugins(args))
    except RattleError as mistake:
        if not mistake.told:
            return fail(str(mistake))
        time.sleep(2)  # the first rank prints it; torchrun ends all ranks as soon as one has ended
        return 2
    except StoppedBySignal as stop:
        print(f"rattle: {printable(str(stop))}", file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except OSError as reason:
        if reason.filename is None:  # of a stream, see `run`
            raise
        return fail(f"cannot use {reason.filename}: {reason.strerror}")
    except (MemoryError, RuntimeError) as reason:
        if "gloo" in str(reason).lower():  # its backend's words for a connection that was closed
            return fail("another rank of the job has ended, and this one with it: start the job again with --resume")
        if not is_out_of_memory(reason):
            raise
        return fail(f"out of memory ({first_line(reason)}): take a smaller --batch-size; what was saved is intact")
    return 0


def without_plugins(args: list[str]) -> list[str]:
    """Run the files of --plugin, here and in child processes; the other arguments."""
    if "RATTLE_PLUGINS" not in os.environ and not any(word.partition("=")[0] == "--plugin" for word in args):
        return args
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="rattle", add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", action="append", default=[])
    found, rest = parser.parse_known_args(args)
    from rattle.models.user import load_plugins

    load_plugins(found.plugin)
    return rest


def print_completion(args: list[str]) -> NoReturn:
    """Have tyro print the script that completes all commands and their options, and exit."""
    import tyro

    options = {command: import_module(f"rattle.cli.{command}").Options for command in COMMANDS}
    tyro.extras.subcommand_cli_from_dict(options, prog="rattle", args=args)
    sys.exit(0)


def fail(sentence: str) -> int:
    with suppress(OSError):  # where stderr is closed or full, the exit code says it
        print(f"rattle: {printable(sentence)}", file=sys.stderr)
    return 2


def run() -> int:
    """`main` as a program of its own."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (until the process ends)
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # LANG=C, names that are not UTF-8
    if os.environ.get("WORLD_SIZE", "1") == "1":  # torchrun ends ranks itself
        signal.signal(signal.SIGTERM, stop)
    keep_memory()
    try:
        os.getcwd()
    except FileNotFoundError:  # torch's libraries would end the process
        return fail("the working directory has been deleted: change to another one")
    try:
        code = main()
        sys.stdout.flush()
    except OSError as reason:  # a full disk, or a pipe that nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(reason, BrokenPipeError):
            return 0
        return fail(f"the operating system refused a file, a stream or a library: {reason}")
    return code


def stop(number: int, _: FrameType | None) -> NoReturn:
    """End the program by a signal while no training listens for it, such as during imports: in words, cleaning up."""
    with suppress(OSError):
        os.write(2, f"rattle: stopped by {signal.Signals(number).name}; what was saved is intact\n".encode())
    sys.exit(128 + number)


def keep_memory() -> None:
    """Have glibc keep the memory of large tensors for the next ones, unless MALLOC_MMAP_MAX_ is set.

    By default it returns each to the system and gets it back zeroed, which takes up to half of a small network's
    forward pass (docs/studies/performance.md).
    """
    if sys.platform != "linux" or "MALLOC_MMAP_MAX_" in os.environ:
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-4, 0)  # M_MMAP_MAX
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
