"""Lower rooms never import higher ones: read from the imports themselves."""

import ast
from pathlib import Path

import pytest

import rattle

SOURCE = Path(rattle.__file__).parent
LEVELS = [
    "errors signals statistics significance paper_rows paper randomness threat losses distributed settings "
    "schedules console npz measure",
    "weights models data attacks taylor views",
    "objectives",
    "recipes",
    "checkpoint",
    "runs",
    "evaluation judging learner train landscape landscape_plots flatness fidelity export tables twins "
    "verdicts targets gallery portraits trackers sweep bench",
    "report",
    "reproduction",
    "verbs",
    "cli __main__",
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms.split()}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
NO_TORCH = {"errors", "statistics", "paper_rows", "paper", "settings", "schedules", "console", "npz", "report", "cli"}


def room(path: Path) -> str:
    """The file or folder directly under rattle/ that a module belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


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
    return {part[1] for part in parts if part[1] != "__version__"}


def test_every_room_has_its_level() -> None:
    without = {room(path) for path in MODULES} - set(LEVEL)
    assert not without, f"give {sorted(without)} a place in LEVELS, and in DESIGN"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_room_imports_a_higher_one(path: Path) -> None:
    higher = {name for name in rooms_imported(path) if LEVEL[name] > LEVEL[room(path)]}
    assert not higher, f"{room(path)} imports {sorted(higher)} from above"


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) in NO_TORCH], ids=lambda p: str(p.relative_to(SOURCE)))
def test_rooms_that_only_count_and_print_import_no_torch(path: Path) -> None:
    assert not {name for name in imported(path) if name.split(".")[0] == "torch"}


def test_the_reading_of_imports_sees_every_form(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text(
        "import rattle.cli\ndef f():\n    from rattle import train as t\n    from rattle.runs import load\n"
    )
    assert rooms_imported(module) == {"cli", "train", "runs"}
