"""The files of a release agree: one version, lower bounds that are tested, workflows that call what there is."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

import rattle
from rattle.cli.doctor import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = re.findall(r"Python :: (3\.\d+)", str(PROJECT["project"]["classifiers"]))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    return yaml.safe_load(text(name))


def files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


def pins(name: str) -> dict[str, str]:
    return {package.lower(): version for package, version in re.findall(r"^([\w-]+)==(\S+)", text(name), re.MULTILINE)}


def test_the_version_stands_in_one_place_and_is_named_by_citation_and_changelog() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rattle.__version__"}
    assert read_yaml("CITATION.cff")["version"] == rattle.__version__
    newest = re.search(r"^## (?!Unreleased)(\S+)", text("CHANGELOG.md"), re.MULTILINE)
    assert newest
    assert newest[1] == rattle.__version__


def test_every_release_in_the_changelog_says_what_may_move_numbers() -> None:
    for release in re.split(r"^## ", text("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        assert "\n### Numerics\n" in release, release.splitlines()[0]


def test_every_dependency_is_pinned_and_its_oldest_version_is_the_one_tested() -> None:
    oldest, newest = pins("constraints-oldest.txt"), pins("constraints.txt")
    for line in PROJECT["project"]["dependencies"]:
        name, least = line.lower().split(">=")
        assert name in newest
        assert re.fullmatch(rf"{re.escape(least)}(\.0)*", oldest[name]), line


def test_every_file_of_the_package_is_declared() -> None:
    source, patterns = ROOT / "src" / "rattle", PROJECT["tool"]["setuptools"]["package-data"]["rattle"]
    for path in source.rglob("*"):
        name = path.relative_to(source).as_posix()
        if path.suffix == ".py":
            assert (path.parent / "__init__.py").is_file(), name
        elif path.is_file() and path.suffix != ".pyc":
            assert any(fnmatch(name, pattern) for pattern in patterns), name


def test_workflows_call_what_there_is_and_may_only_read_unless_a_job_says_more() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    names = files(".github/workflows/*.yml")
    assert {Path(name).stem for name in names} >= {"test", "docs", "release"}
    for name in names:
        plain = read_yaml(name)
        assert plain["permissions"] == {"contents": "read"}
        called = set(re.findall(r"\bmake ([a-z-]+)", text(name)))
        assert called <= targets, name
        for file in re.findall(r"\b[\w/-]+\.(?:py|txt|md)\b", text(name)):
            assert (ROOT / file).is_file(), (name, file)
        for job in plain["jobs"].values():
            assert set(job.get("strategy", {}).get("matrix", {}).get("target", [])) <= targets
            assert "id-token" not in job.get("permissions", {}) or "environment" in job
            for step in job["steps"]:
                assert "@" in step.get("uses", "@")
                # an expression inside a script is how an attacker's branch name becomes a command
                assert "${{ github." not in step.get("run", "")


def test_the_matrix_of_tests_is_what_the_project_promises() -> None:
    for job in ("test", "wheel"):
        assert read_yaml(".github/workflows/test.yml")["jobs"][job]["strategy"]["matrix"]["python"] == PYTHONS
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert f"Python {', '.join(PYTHONS[:-1])} and {PYTHONS[-1]}" in text("README.md")


def test_every_extra_is_installed_and_shown_somewhere() -> None:
    extras = {*PROJECT["project"]["optional-dependencies"]} - {"docs"}
    assert set(EXTRAS) == extras
    (installed,) = re.findall(r'--editable "\.\[(dev,.*)\]"', text("Makefile"))
    assert {*installed.split(",")} == extras
    page = text("docs/start/install.md")
    assert [extra for extra in extras if f"`{extra}`" not in page] == []


def test_pre_commit_uses_the_tools_of_the_tests() -> None:
    found = re.findall(r"([\w-]+)==([\w.]+)", text(".pre-commit-config.yaml"))
    assert found
    for package, version in found:
        assert pins("constraints.txt")[package.lower()] == version
