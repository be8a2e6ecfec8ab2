"""The rooms of src/rattle: what each may import, and which stay free of torch.

docs/architecture.md draws the picture. Imports are read from the files themselves, so a lazy one counts too.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rattle

SOURCE = Path(rattle.__file__).parent
METHOD = "errors settings registry threat losses taylor weights forward inputs randomness randomized stats"
# A room imports only from rooms on lines above its own, and from itself.
ORDER = [
    "method",
    "attacks models data",
    "objectives",
    "recipes",
    "runs",
    "evaluation",
    "training integrations",
    "compat",
    "analysis",
    "report",
    "paper",
    "publish",
    "cli",
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms.split()}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
NO_TORCH = (
    "errors",
    "settings",
    "registry",
    "stats",
    "recipes/schema",
    "recipes/reading",
    "recipes/schedules",
    "runs/paths",
    "runs/io",
    "runs/arrays",
    "runs/progress",
)
NO_TORCH += (
    "recipes/names",
    "evaluation/results",
    "evaluation/caveats",
    "report",
    "paper/tables",
    "paper/rows",
    "publish/card",
    "cli/main",
)


def room(path: Path) -> str:
    """The folder a module lives in; the files at the top are the method."""
    parts = path.relative_to(SOURCE).parts
    if len(parts) > 1:
        return parts[0]
    return "cli" if path.stem == "__main__" else "method"


def imported(path: Path) -> set[str]:
    """Every module a file imports, at any depth, by its full name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the whole name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported(path: Path) -> set[str]:
    parts = [name.split(".") for name in imported(path) if name.startswith("rattle.")]
    names = {part[1] for part in parts if part[1] != "__version__"}
    return {"method" if name in METHOD.split() else name for name in names}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_the_top_holds_the_method_alone() -> None:
    top = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert top == set(METHOD.split())


def test_every_room_has_its_place() -> None:
    without = {room(path) for path in MODULES} - set(LEVEL)
    assert not without, f"give {sorted(without)} a place in ORDER, and in docs/architecture.md"


def test_no_room_imports_from_its_own_line_or_below() -> None:
    wrong = {}
    for path in MODULES:
        own = room(path)
        names = {name for name in rooms_imported(path) if name != own and LEVEL[name] >= LEVEL[own]}
        if names:
            wrong[name_of(path)] = sorted(names)
    assert not wrong, f"the order is {' -> '.join(ORDER)}"


def free_of_torch(path: Path) -> bool:
    name = name_of(path).removesuffix(".py")
    return any(name == free or name.startswith(f"{free}/") for free in NO_TORCH)


def test_what_only_counts_and_prints_imports_no_torch() -> None:
    for path in MODULES:
        if free_of_torch(path):
            assert not {name for name in imported(path) if name.split(".")[0] == "torch"}, name_of(path)


@pytest.mark.process
def test_importing_what_is_free_of_torch_brings_no_torch_in() -> None:
    """Not by way of another module either."""
    free = [name_of(path).removesuffix(".py").removesuffix("/__init__") for path in MODULES if free_of_torch(path)]
    imports = "; ".join(f"import rattle.{name.replace('/', '.')}" for name in free)
    imports += "; import rattle.attacks.registry, rattle.objectives.registry, rattle.models.registry"
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


SMALL_FIT = """
import sys, tempfile
from dataclasses import replace
from rattle.recipes.catalog import get_recipe
from rattle.training.loop import fit
recipe = get_recipe("digits-linf-cnn-trades-2nd")
recipe = replace(recipe, epochs=1, width=4, data=replace(recipe.data, train_size=128, val_size=10))
fit(replace(recipe, attack=replace(recipe.attack, steps=1)), tempfile.mkdtemp() + "/run", log="none")
print(*sorted(name for name in sys.modules if name.startswith("rattle.")))
"""
FIT_IMPORTS = 60


@pytest.mark.process
def test_fit_imports_few_modules() -> None:
    found = subprocess.run([sys.executable, "-c", SMALL_FIT], capture_output=True, text=True, timeout=120, check=True)
    modules = found.stdout.split()
    print(f"rattle.fit imports {len(modules)} modules of rattle")
    assert len(modules) <= FIT_IMPORTS, modules
    assert "rattle.evaluation" not in modules


def test_the_reading_of_imports_sees_every_form(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text(
        "import rattle.cli\ndef f():\n    from rattle import stats as t\n    from rattle.runs.load import load\n"
    )
    assert rooms_imported(module) == {"cli", "method", "runs"}


def test_no_file_is_two_things() -> None:
    long = {name_of(path): n for path in MODULES if (n := len(path.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long
