"""How much of the code a run needs stays small: see `make size` and reproduction/size.py for what is counted."""

from pathlib import Path

from reproduction.size import nodes_by_definition, settings_in_a_recipe, size_of, trace_evaluate, trace_fit


def test_a_recipe_has_few_settings() -> None:
    of_one, _ = settings_in_a_recipe()  # of all methods together there are more, and plug-ins add theirs: decision 30
    assert of_one <= 80


def test_an_image_passes_few_files_in_fit() -> None:
    files = trace_fit().image_files
    assert {"training/step.py", "forward.py", "attacks/pgd.py"} < files
    assert len(files) <= 14, sorted(files)


def test_an_image_passes_few_files_in_evaluate() -> None:
    files = trace_evaluate().image_files
    assert {"evaluation/evaluate.py", "attacks/pgd.py", "threat.py"} < files
    assert len(files) <= 8, sorted(files)


def test_nodes_are_counted_by_room_and_folding_makes_none_fewer(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.py").write_text("x = [y for y in z]\n")
    (tmp_path / "b.py").write_text("if x:\n    y = 1\nelse:\n    y = 2\n")
    found = size_of(tmp_path)
    assert found.folded == {"comprehensions": 1, "conditional expressions": 0}
    assert found.lines == {"a": 1, "(top)": 4}
    assert found.nodes["a"] == 12


def test_code_is_counted_by_definition() -> None:
    before = nodes_by_definition(
        {"a.py": "def f():\n    return 1\n\nclass A:\n    x = 1\n    def g(self):\n        pass\n"}
    )
    moved = nodes_by_definition(
        {"a.py": "class A:\n    x = 1\n    def g(self):\n        pass\n", "b.py": "def f():\n    return 1\n"}
    )
    assert {name: before[name] for name in ("f", "A", "A.g")} == {name: moved[name] for name in ("f", "A", "A.g")}
    assert sum(moved.values()) == sum(before.values()) + 1  # the second file's module
