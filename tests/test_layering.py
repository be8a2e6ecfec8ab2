"""The rooms of src/rattle: what each may import, which stay free of torch, and how long they may grow.

docs/architecture.md draws the picture. Imports are read from the files themselves, so a lazy one counts too.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rattle

SOURCE = Path(rattle.__file__).parent
METHOD = "errors threat losses jets taylor weights forward randomness stats"
# A room imports only from rooms on lines above its own, and from itself.
ORDER = [
    "method",
    "attacks models data",
    "objectives",
    "recipes",
    "runs",
    "evaluation",
    "training compat",
    "analysis",
    "report",
    "bench",
    "paper",
    "publish",
    "cli",
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms.split()}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
NO_TORCH = (
    "errors",
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
    "evaluation/results",
    "evaluation/trust",
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


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_room_imports_from_its_own_line_or_below(path: Path) -> None:
    own = room(path)
    wrong = {name for name in rooms_imported(path) if name != own and LEVEL[name] >= LEVEL[own]}
    assert not wrong, f"{own} imports {sorted(wrong)}; the order is {' -> '.join(ORDER)}"


def free_of_torch(path: Path) -> bool:
    name = name_of(path).removesuffix(".py")
    return any(name == free or name.startswith(f"{free}/") for free in NO_TORCH)


@pytest.mark.parametrize("path", [p for p in MODULES if free_of_torch(p)], ids=name_of)
def test_what_only_counts_and_prints_imports_no_torch(path: Path) -> None:
    assert not {name for name in imported(path) if name.split(".")[0] == "torch"}


def test_importing_what_is_free_of_torch_brings_no_torch_in() -> None:
    """Not by way of another module either."""
    free = [name_of(path).removesuffix(".py").removesuffix("/__init__") for path in MODULES if free_of_torch(path)]
    imports = "; ".join(f"import rattle.{name.replace('/', '.')}" for name in free)
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_the_reading_of_imports_sees_every_form(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text(
        "import rattle.cli\ndef f():\n    from rattle import stats as t\n    from rattle.runs.load import load\n"
    )
    assert rooms_imported(module) == {"cli", "method", "runs"}


# Lines of Python, for every room. Raised only with a decision record (docs/adr/0014-every-room-has-a-budget.md).
ROOM_BUDGETS = {
    "method": 1530,
    "attacks": 2340,
    "models": 1620,
    "data": 2510,
    "objectives": 2340,
    "recipes": 1090,
    "runs": 1680,
    "evaluation": 1840,
    "training": 2120,
    "compat": 180,
    "analysis": 1730,
    "report": 2180,
    "bench": 1110,
    "paper": 1740,
    "publish": 570,
    "cli": 3300,
}
# What a reader of Algorithm 1 opens.
READING = "threat taylor weights attacks/pgd objectives/at objectives/trades objectives/taylor_terms training/step"
READING_BUDGET = 1100
FILE_BUDGET, FUNCTION_BUDGET = 400, 40


@pytest.mark.parametrize("name", ROOM_BUDGETS)
def test_a_room_keeps_to_its_budget_of_lines(name: str) -> None:
    files = [path for path in MODULES if room(path) == name]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert lines <= ROOM_BUDGETS[name], f"{name} has {lines} lines"


def test_no_room_is_without_a_budget() -> None:
    assert set(ROOM_BUDGETS) == set(LEVEL)


def test_the_method_is_read_in_one_sitting() -> None:
    lines = [len((SOURCE / f"{name}.py").read_text(encoding="utf-8").splitlines()) for name in READING.split()]
    assert sum(lines) <= READING_BUDGET


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_and_no_function_is_two_things(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FILE_BUDGET
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno >= FUNCTION_BUDGET}
    assert not long, f"{name_of(path)}: {long}"


def test_the_step_fits_on_a_screen() -> None:
    assert len((SOURCE / "training" / "step.py").read_text(encoding="utf-8").splitlines()) <= 80
