"""Wrong values refused before torch is imported, which takes seconds, by the code that refuses them anyway.

A command that computes has a function `read`: it turns arguments into settings and refuses what needs no model. A
forked process rehearses it while torch and other heavy packages are blank: they can be imported and subclassed, not
used. The first use ends the rehearsal undecided, and so does every surprise; then the command itself decides
(docs/adr/0012-values-are-refused-without-torch.md). Meanwhile the command imports torch, so what is right starts no
later where there are two cores.
"""

import ast
import importlib
import importlib.abc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from threading import Thread
from types import ModuleType
from typing import Any, NoReturn

from rattle.cli import names
from rattle.errors import RattleError
from rattle.runs.paths import printable

BLANK = ("torch", "torchvision", "scipy", "sklearn", "matplotlib", "PIL", "safetensors")
REFUSED = 2  # exit code, of the command too


class NeededForReal(BaseException):
    """Something blank was used; no `except Exception` may take it for a user's mistake."""


class Blank(type):
    """Type of all that a blank package holds: any attribute and any call gives the same again, as long as importing."""

    importing = True

    def __getattr__(cls, name: str) -> Any:
        return something(name)

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return something()

    def __getitem__(cls, _: Any) -> Any:
        return something()


class Something(metaclass=Blank):
    """A tensor, a module, a decorator, a number: what a class body or a line at a file's top makes of a package."""


def something(name: str = "") -> type[Something]:
    if name.startswith("__"):  # Python asks for these, and takes no for an answer
        raise AttributeError(name)
    if not Blank.importing:
        raise NeededForReal
    return Something


class BlankPackage(ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        return something(name)


class BlankFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds blank packages; after the imports at the files' tops are done it ends the rehearsal."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in BLANK else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if not Blank.importing:
            raise NeededForReal
        return BlankPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def refuses(command: str, args: list[str], *, alone: bool = False) -> bool:
    """Whether the command's `read` refuses the arguments; if so, it has said why.

    alone: this process is the command's own. Then torch is imported meanwhile, and a refusal ends the process.
    """
    if "torch" in sys.modules or not hasattr(os, "fork") or {"-h", "--help"} & {*args} or not has_read(command):
        return False
    for name in ("rattle.cli.options", "numpy"):  # what both need: the first brings tyro
        importlib.import_module(name)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        rehearse(command, args)
    if not alone:
        return refused(child)
    waiting = Thread(target=leave_if_refused, args=(child,))
    waiting.start()
    with suppress(ImportError):  # the command itself will say it
        importlib.import_module("torch")
    waiting.join()
    return False


def refused(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == REFUSED


def leave_if_refused(child: int) -> None:
    """End this process if the rehearsal ends with a refusal, in the midst of an import too."""
    if refused(child):
        os._exit(REFUSED)


def has_read(command: str) -> bool:
    return any(
        isinstance(node, ast.FunctionDef) and node.name == "read" for node in names.tree(f"rattle.cli.{command}").body
    )


def rehearse(command: str, args: list[str]) -> NoReturn:
    """Run `read` and leave the process with the verdict as its exit code."""
    verdict: object = 0
    warnings.simplefilter("ignore")  # the command itself will say them
    try:
        with blank_packages():
            module = importlib.import_module(f"rattle.cli.{command}")
        module.read(args)
    except RattleError as mistake:
        with suppress(OSError):  # where stderr is closed or full, the exit code says it
            print(f"rattle: {printable(str(mistake))}", file=sys.stderr)
        verdict = REFUSED
    except SystemExit as stop:  # the parser has said why
        verdict = stop.code
    except BaseException:  # undecided
        pass
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(REFUSED if verdict == REFUSED else 0)


@contextmanager
def blank_packages() -> Iterator[None]:
    """Import in the body what imports torch; afterwards every use of torch raises NeededForReal."""
    sys.meta_path.insert(0, BlankFinder())
    yield
    Blank.importing = False
    for name in [name for name in sys.modules if name.partition(".")[0] in BLANK]:
        del sys.modules[name]
