"""The user's own model: `path/to/file.py:build`, `package.module:build` or `timm:NAME`, wherever a model name goes."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from rattle.errors import RattleError, unknown
from rattle.models.layers import normalisation


def build_user_model(spec: str, *, classes: int, channels: int, **options: Any) -> nn.Module:
    """The model that the user's function (or class) makes; it is given those keywords it has.

    It may ask for `classes` or `num_classes`, `channels`, `in_channels` or `in_chans`. A further option that is not
    None must be a keyword of the function, except `normalise`: a function without it gets Normalise put in front.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise RattleError(f"a model of your own is given as FILE.py:FUNCTION or package.module:FUNCTION, got {spec!r}")
    if where == "timm":
        make: Callable[..., Any] = _timm(name)
    else:
        make = _attribute(_module(where, spec), name, where)
    asked = {key: value for key, value in options.items() if value is not None}
    keywords = _keywords(make, spec, classes, channels, asked)
    with _users_code(spec):
        model = make(**keywords)
    if not isinstance(model, nn.Module):
        raise RattleError(f"{spec} must return a torch.nn.Module, got {type(model).__name__}")
    if "normalise" in asked and "normalise" not in keywords:
        return nn.Sequential(normalisation(asked["normalise"], channels), model)
    return model


def _timm(name: str) -> Callable[..., Any]:
    try:
        timm: Any = importlib.import_module("timm")
    except Exception as error:  # not installed, or installed with a torchvision made for another torch
        raise RattleError(f"timm:{name} needs timm, which could not be imported ({error}): pip install timm") from error
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())

    def make(num_classes: int, in_chans: int) -> nn.Module:
        return timm.create_model(name, num_classes=num_classes, in_chans=in_chans)

    return make


def _module(where: str, spec: str) -> ModuleType:
    path = Path(where)
    if path.suffix != ".py" and len(path.parts) == 1:
        return _imported(where, spec)
    if not path.is_file():
        raise RattleError(f"no file {where} in {Path.cwd()}, which the model {spec} names")
    name = f"rattle_user_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise RattleError(f"{where} is not a Python file; a model of your own is given as FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and pickling look the module up there
    with _search(path.resolve().parent), _users_code(spec):
        found.loader.exec_module(module)
    return module


def _imported(name: str, spec: str) -> ModuleType:
    with _search(Path.cwd()), _users_code(spec):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise RattleError(f"no module {error.name!r}, which the model {spec} names") from error
            raise


def _attribute(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    if not hasattr(module, name):
        raise unknown(f"function or class of {where}", name, public)
    make = getattr(module, name)
    if not callable(make):
        raise RattleError(f"{where}:{name} must be a function or a class, got {type(make).__name__}")
    return make


def _keywords(
    make: Callable[..., Any], spec: str, classes: int, channels: int, asked: dict[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(make).parameters
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        named |= {"classes", "channels", *asked} - ({"classes"} if "num_classes" in named else set())
    offered = {"classes": classes, "num_classes": classes, "channels": channels, "in_channels": channels}
    offered |= {"in_chans": channels} | asked
    refused = [key for key in asked if key not in named and key != "normalise"]
    if refused:
        raise RattleError(f"{spec} has no keyword {refused[0]!r}, which the recipe sets")
    keywords = {key: value for key, value in offered.items() if key in named}
    needed = [n for n, p in parameters.items() if n in named and p.default is p.empty and n not in keywords]
    if needed:
        raise RattleError(f"{spec} needs {needed[0]!r}, which is not known; give it a default (classes, channels are)")
    return keywords


@contextmanager
def _search(folder: Path) -> Iterator[None]:
    """Imports inside the user's code look beside it as well."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _users_code(spec: str) -> Iterator[None]:
    """An exception of the user's code becomes a sentence that names the file and the line."""
    try:
        yield
    except RattleError:
        raise
    except SyntaxError as error:
        raise RattleError(f"{spec}: {error.filename}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
        place = f"{own[0].filename}:{_deepest(own)}" if own else spec
        raise RattleError(f"{spec}: {place} raised {type(error).__name__}: {error}") from error


def _deepest(frames: list[traceback.FrameSummary]) -> int | None:
    """The last line reached in the file where the user's code begins."""
    return [f.lineno for f in frames if f.filename == frames[0].filename][-1]
