"""How large the code is, and how much of it a training run needs: what `make size` prints.

    python -m reproduction.size            # everything, about ten seconds
    python -m reproduction.size --static   # what needs no torch: syntax nodes, lines, folded expressions
    python -m reproduction.size --since REV   # beside it, how much of src at a commit is left

- Size is counted in syntax nodes (`ast.walk`), which folding code does not make fewer; lines are printed beside them.
- Modules imported: those of rattle in `sys.modules` after `import rattle; rattle.fit`, in a fresh process.
- Functions and files executed: code of src/rattle that a call enters in a small `fit` (two steps, no validation).
- Files an image passes: files of src/rattle of which a function is given images, alone or inside a dataset, a batch, a
  dict or a tuple, in that `fit` and in `evaluate(model, x, y, ["pgd5"], check_model=False)`.
- Settings: those of the listed recipe that has most, and all that any recipe can have, whichever kinds its parts are
  (`settings_of`).
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rattle"
SIDE = 8  # pixels of the images of the runs measured here, by which they are recognised
FOLDED = {
    "comprehensions": (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    "conditional expressions": (ast.IfExp,),
}


@dataclass(slots=True)
class Size:
    """Syntax nodes and lines of Python files, by the folder below their root."""

    nodes: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    folded: Counter[str] = field(default_factory=Counter)


def size_of(root: Path) -> Size:
    """The size of all Python files below a folder."""
    found = Size()
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        room = parts[0] if len(parts) > 1 else "(top)"
        text = path.read_text(encoding="utf-8")
        found.lines[room] += len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            found.nodes[room] += 1
            for name, kinds in FOLDED.items():
                found.folded[name] += isinstance(node, kinds)
    return found


def texts_at(revision: str) -> dict[str, str]:
    """The Python files of src at a commit, by path."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=ROOT).stdout

    paths = git("ls-tree", "-r", "--name-only", revision, "src").splitlines()
    return {path: git("show", f"{revision}:{path}") for path in paths if path.endswith(".py")}


def count_nodes(tree: ast.AST) -> int:
    return sum(1 for _ in ast.walk(tree))


def nodes_by_definition(texts: dict[str, str]) -> Counter[str]:
    """Nodes of each function, method and class body by its name, in whichever file; the rest of each file by path."""
    found: Counter[str] = Counter()
    for path, text in texts.items():
        tree = ast.parse(text)
        rest = count_nodes(tree)
        for outer in tree.body:
            if not isinstance(outer, ast.FunctionDef | ast.ClassDef):
                continue
            own = count_nodes(outer)
            rest -= own
            for inner in outer.body if isinstance(outer, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef):
                    found[f"{outer.name}.{inner.name}"] += count_nodes(inner)
                    own -= count_nodes(inner)
            found[outer.name] += own
        found[path] += rest
    return found


def print_survivors(revision: str) -> None:
    """How many nodes of src at a commit are left: at most what each file had then or has now, whichever is less.

    The same by definition is too few, since code under a new name does not count.
    """
    before = texts_at(revision)
    after = {f"src/rattle/{path.relative_to(SOURCE).as_posix()}": path.read_text() for path in SOURCE.rglob("*.py")}
    by_file = [{path: count_nodes(ast.parse(text)) for path, text in texts.items()} for texts in (before, after)]
    by_definition = nodes_by_definition(before), nodes_by_definition(after)
    for name, (then, now) in {"files": by_file, "definitions": by_definition}.items():
        left = sum(min(nodes, now.get(key, 0)) for key, nodes in then.items())
        print(f"left of {sum(then.values()):,} nodes at {revision}, by {name:<12} {left:>9,} nodes")


def modules_of_fit() -> int:
    """Modules of rattle that `rattle.fit` imports, in a fresh process."""
    code = "import sys, rattle; rattle.fit; print(sum(name.partition('.')[0] == 'rattle' for name in sys.modules))"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def settings_of(kind: type, prefix: str = "") -> list[str]:
    """The dotted names of all settings that a dataclass can have, whichever kinds its parts are.

    A part of which there are several kinds counts its `kind`, one that may be left out counts for that, and a name that
    several kinds share counts once.
    """
    from rattle.recipes import schema

    found: dict[str, None] = {}
    for setting in fields(kind):
        name, hint = setting.name, schema.types_of(kind)[setting.name]
        members = schema.dataclass_members(hint)
        if not members or type(None) in schema.alternatives(hint):
            found[prefix + name] = None
        if schema.has_kinds(hint):
            found[f"{prefix}{name}.kind"] = None
        for member in members:
            found |= dict.fromkeys(settings_of(member, f"{prefix}{name}."))
    return list(found)


def settings_in_a_recipe() -> tuple[int, int]:
    """The settings of the listed recipe that has most, and all that any recipe can have."""
    from rattle.recipes.catalog import get_recipe
    from rattle.recipes.names import list_recipes
    from rattle.recipes.recipe import Recipe
    from rattle.recipes.schema import flatten, to_plain

    return max(len(flatten(to_plain(get_recipe(name)))) for name in list_recipes()), len(settings_of(Recipe))


@dataclass(slots=True)
class Trace:
    """What a call executes of src/rattle."""

    functions: set[tuple[str, str, int]] = field(default_factory=set)  # file, name, line
    image_files: set[str] = field(default_factory=set)  # of which a function is given images

    @property
    def files(self) -> set[str]:
        return {file for file, _, _ in self.functions}


def holds_images(value: object, depth: int = 0) -> bool:
    """Whether a value is images, or has them a few levels down."""
    import torch

    if isinstance(value, torch.Tensor):
        shaped = value.ndim >= 3 and value.shape[-2:] == (SIDE, SIDE)
        return shaped and value.dtype != torch.int64  # the bits of an image's random stream
    if depth > 2 or isinstance(value, type):
        return False
    inside: list[object] = []
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    inside += [getattr(value, name, None) for name in ("x", "train")]
    return any(holds_images(each, depth + 1) for each in inside)


def traced(work: Callable[[], object]) -> Trace:
    """Run something twice and record what the second run enters: the first one imports."""
    found, source = Trace(), f"{SOURCE}{os.sep}"
    work()

    def on_call(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(source):
            return
        file = code.co_filename.removeprefix(source)
        found.functions.add((file, code.co_qualname, code.co_firstlineno))
        if file in found.image_files:
            return
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            if holds_images(frame.f_locals.get(name)):
                found.image_files.add(file)

    sys.setprofile(on_call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def trace_fit() -> Trace:
    """A fit of two steps on 64 digits, without validation, which is an evaluation."""
    import rattle

    recipe = rattle.get_recipe("digits-linf-cnn-trades-2nd")
    data = replace(recipe.data, train_size=64, val_size=0)
    recipe = replace(recipe, epochs=1, width=4, batch_size=32, data=data)

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            rattle.fit(recipe, Path(folder, "run"), log="none")

    return traced(run)


def trace_evaluate() -> Trace:
    """An evaluation by PGD-5 of eight images that the network gets right."""
    import torch

    import rattle
    from rattle.models.registry import create_model

    model, x = create_model("cnn", classes=10, channels=1).eval(), torch.rand(8, 1, SIDE, SIDE)
    y = model(x).argmax(1)
    return traced(lambda: rattle.evaluate(model, x, y, ["pgd5"], check_model=False))


def print_size(title: str, found: Size) -> None:
    print(f"{title:<28} {sum(found.nodes.values()):>9,} nodes {sum(found.lines.values()):>8,} lines")
    for room, nodes in found.nodes.most_common():
        print(f"  {room:<26} {nodes:>9,}       {found.lines[room]:>8,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--static", action="store_true", help="leave out what runs code")
    parser.add_argument("--since", metavar="REV", help="a commit: how much of its src is left")
    options = parser.parse_args()
    source = size_of(SOURCE)
    print_size("src/rattle", source)
    print_size("tests", size_of(ROOT / "tests"))
    print_size("reproduction", size_of(ROOT / "reproduction"))
    for name in FOLDED:
        rate = 1000 * source.folded[name] / sum(source.lines.values())
        print(f"{name + ' in 1,000 lines of src':<52} {rate:>6.1f}")
    if options.since:
        print_survivors(options.since)
    if options.static:
        return
    fit, evaluate = trace_fit(), trace_evaluate()
    print(f"{'modules that rattle.fit imports':<52} {modules_of_fit():>6}")
    print(f"{'functions that a small fit executes':<52} {len(fit.functions):>6}")
    print(f"{'files that they are in':<52} {len(fit.files):>6}")
    print(f"{'files that an image passes in fit':<52} {len(fit.image_files):>6}")
    print(f"{'files that an image passes in evaluate':<52} {len(evaluate.image_files):>6}")
    most, known = settings_in_a_recipe()
    print(f"{'settings of the listed recipe that has most':<52} {most:>6}")
    print(f"{'settings that recipes of all methods have together':<52} {known:>6}")


if __name__ == "__main__":
    main()
