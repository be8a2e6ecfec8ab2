"""A user's own model: `path/to/file.py:build`, `package.module:build` or `timm:NAME` in place of a model's name."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from rattle.errors import RattleError, unknown
from rattle.forward import keep_logits
from rattle.models.layers import NormalisedNetwork, normalisation

USER_MODULE = "rattle_user_"  # begins the names of modules that were files
PLUGINS = "RATTLE_PLUGINS"  # environment variable: the files of --plugin
CHANNELS = ("channels", "in_channels", "in_chans")


def call_builder(make: Callable[..., Any], name: str, *, classes: int, channels: int, **options: Any) -> nn.Module:
    """The model that `make` returns when it is given those of the keywords that it has.

    make: may have the keywords `classes` or `num_classes`, and `channels`, `in_channels` or `in_chans`. name: for error
    messages. options: each one that is not None must be a keyword of make, except `normalise`: where make lacks it, a
    Normalise layer is put in front of the model.
    """
    options = {key: value for key, value in options.items() if value is not None}
    values = {"classes": classes, "num_classes": classes, **dict.fromkeys(CHANNELS, channels), **options}
    parameters = inspect.signature(make).parameters
    accepted = set()
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            accepted.add(key)
            if parameter.default is parameter.empty and key not in values:
                raise RattleError(
                    f"{name} needs {key!r}, which is not known; give it a default (classes, channels are)"
                )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        accepted |= {"channels", *options}
        if "num_classes" not in accepted:
            accepted.add("classes")
    for key in options:
        if key not in accepted and key != "normalise":
            raise RattleError(f"{name} has no keyword {key!r}, which the recipe sets")
    with _user_code(name):
        model = make(**{key: value for key, value in values.items() if key in accepted})
    if not isinstance(model, nn.Module):
        raise RattleError(f"{name} must return a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(model, NormalisedNetwork):
        model = keep_logits(model)
    if "normalise" in options and "normalise" not in accepted:
        return nn.Sequential(normalisation(options["normalise"], channels), model)
    return model


def source_file(name: str) -> Path | None:
    """The file that a model of the form `FILE.py:FUNCTION` names; None for any other name.

    >>> source_file("nets/mine.py:build").name, source_file("package.module:build"), source_file("cnn")
    ('mine.py', None, None)
    """
    source = name.rpartition(":")[0]
    return Path(source) if source.endswith(".py") or len(Path(source).parts) > 1 else None


def is_code(name: str) -> bool:
    """Whether building the model of that name runs code from outside, or has timm open a file that could.

    >>> [is_code(name) for name in ("cnn", "net.py:build", "os:abort", "timm:vit", "timm:vit,checkpoint_path=a")]
    [False, True, True, False, True]
    """
    if name.startswith("timm:"):
        from rattle.models.timm import opens_files

        return opens_files(name)
    return name.endswith(".py") or (":" in name and not name.startswith("python:"))  # `fit` was given those as modules


def refuse_code(names: Iterable[str], where: str) -> None:
    """Raise RattleError if a model among the names is code; `where` is the file that names it, not the user."""
    for name in names:
        if is_code(name):
            raise RattleError(
                f"{where} names code to run as its model: {name}; read it, and give --trust-code if you trust it "
                "(in Python trust_code=True)"
            )


def import_builder(name: str) -> Callable[..., Any]:
    """The function or class that `FILE.py:FUNCTION`, `package.module:FUNCTION` or `timm:NAME` means (timm.py)."""
    if name.startswith("timm:"):
        from rattle.models.timm import timm_builder

        return timm_builder(name)
    if name.endswith(".onnx"):
        raise RattleError(f"an ONNX file is evaluated as it is (rattle evaluate --model {name}): nothing trains it")
    source, _, attribute = name.rpartition(":")
    if not source or not attribute:
        raise RattleError(f"a model of your own is given as FILE.py:FUNCTION or package.module:FUNCTION, got {name!r}")
    path = source_file(name)
    if path:
        module = run_file(path, name)
    else:
        with _user_code(name, Path.cwd()):
            module = importlib.import_module(source)
    if not hasattr(module, attribute):
        public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise unknown(f"function or class of {source}", attribute, public)
    make = getattr(module, attribute)
    if not callable(make):
        raise RattleError(f"{name} must be a function or a class, got {type(make).__name__}")
    return make


def run_file(path: Path, name: str) -> ModuleType:
    """Run a user's file, which `name` names, as a module."""
    if not path.is_file():
        raise RattleError(f"no file {path} in {Path.cwd()}, which the model {name} names")
    module_name = f"{USER_MODULE}{path.stem}"
    found = importlib.util.spec_from_file_location(module_name, path)
    if found is None or found.loader is None:
        raise RattleError(f"{path} is not a Python file; a model of your own is given as FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(found)
    sys.modules[module_name] = module  # dataclasses and pickle look the module up there
    with _user_code(name, path.resolve().parent):
        found.loader.exec_module(module)
    return module


def plugins() -> list[Path]:
    """The files of --plugin, of this process or of the one that started it."""
    return [Path(text) for text in os.environ.get(PLUGINS, "").split(os.pathsep) if text]


def load_plugins(files: Iterable[str]) -> None:
    """Run files that register methods, attacks, networks or datasets; child processes find them in the environment."""
    paths = dict.fromkeys([*plugins(), *(Path(file).absolute() for file in files)])
    for path in paths:
        if not path.is_file():
            raise RattleError(f"there is no plug-in {path}")
        run_file(path, str(path))
    os.environ[PLUGINS] = os.pathsep.join(map(str, paths))


@contextmanager
def _user_code(name: str, *folders: Path) -> Iterator[None]:
    """Find imports in the folders too; turn an exception into a RattleError that names the file and the line."""
    sys.path[:0] = map(str, folders)
    try:
        yield
    except RattleError:
        raise
    except SyntaxError as error:
        raise RattleError(f"{name}: {error.filename}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f"{f.filename}:{f.lineno}" for f in frames if f.filename != __file__ and "importlib" not in f.filename]
        where = own[0] if own else name
        raise RattleError(f"{name}: {where} raised {type(error).__name__}: {error}") from error
    finally:
        for folder in folders:
            sys.path.remove(str(folder))
