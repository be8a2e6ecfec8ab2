"""Registries: names without imports, objects when they are asked for, and those of users."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rattle.attacks.registry import ATTACKS
from rattle.errors import RattleError
from rattle.models.registry import BUILDERS
from rattle.objectives.registry import METHODS, WITH_AWP, WITH_TAYLOR, variants_of
from rattle.registry import Entry, Registry


def counts() -> Registry[object]:
    return Registry("count", {"pi": Entry("math:pi", "a number"), "e": Entry("math:e")}, points="rattle.counts")


def test_a_registry_imports_what_it_is_asked_for_and_takes_more() -> None:
    registry = counts()
    assert not registry.objects
    assert registry["pi"] == pytest.approx(3.14159265)
    with pytest.raises(RattleError, match="'pi'"):
        registry.entry("pie")
    with pytest.raises(RattleError, match="taken"):
        registry.add("pi", 3)
    registry.add("two", 1)
    registry.add("two", 2, Entry(summary="twice one"))
    assert (registry["two"], registry.entry("two").summary) == (2, "twice one")


def test_entry_points_of_installed_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name="tau", value="math:tau", group="rattle.counts")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "rattle.counts" else [])
    registry = counts()
    assert list(registry) == ["pi", "e", "tau"]
    assert registry["tau"] == pytest.approx(6.28318531)


def test_a_module_that_registers_while_it_is_imported_does_not_break_a_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = counts()
    (tmp_path / "counts_of_mine.py").write_text("import sys\nsys.counted.add('three', 3)\nfour = 4\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.counted", registry, raising=False)
    registry.known["four"] = Entry("counts_of_mine:four")
    assert [*registry.values()][2:] == [4]
    assert [*registry] == ["pi", "e", "four", "three"]


@pytest.mark.parametrize("registry", [ATTACKS, BUILDERS, METHODS], ids=lambda registry: registry.kind)
def test_every_entry_has_a_summary_and_an_object(registry: Registry[object]) -> None:
    for name in registry.built_in:
        assert registry[name] is not None
        assert registry.entry(name).summary


def test_the_variants_of_a_method_are_those_that_it_has() -> None:
    for name in METHODS.built_in:
        method = METHODS[name]
        found = {*(WITH_AWP if method.awp else ()), *(WITH_TAYLOR if hasattr(method.objective, "taylor") else ())}
        assert {*variants_of(name)} == found, name
