"""The files of a release agree: one version, lower bounds that are tested, workflows that call what there is."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import rattle

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
PYTHONS = re.findall(r"Python :: (3\.\d+)", str(PROJECT["project"]["classifiers"]))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(name: str) -> dict[str, str]:
    lines = [line.split("==") for line in text(name).splitlines() if "==" in line and not line.startswith("#")]
    return {package.lower(): version for package, version in lines}


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rattle.__version__"}
    assert len(re.findall(r"^__version__ = ", text("src/rattle/__init__.py"), re.MULTILINE)) == 1


def test_the_citation_and_the_changelog_name_the_version() -> None:
    assert yaml.safe_load(text("CITATION.cff"))["version"] == rattle.__version__
    first, *_ = re.findall(r"^## (?!Unreleased)(\S+)", text("CHANGELOG.md"), re.MULTILINE)
    assert first == rattle.__version__


def test_every_release_in_the_changelog_says_what_may_move_numbers() -> None:
    for release in re.split(r"^## ", text("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        assert "\n### Numerics\n" in release, release.splitlines()[0]


def test_the_oldest_versions_tested_are_those_promised() -> None:
    promised = dict(re.split(">=", line.lower()) for line in PROJECT["project"]["dependencies"])
    oldest = {name: version for name, version in pins("constraints-oldest.txt").items() if name in promised}
    assert {name: padded(version) for name, version in promised.items()} == {
        name: padded(version) for name, version in oldest.items()
    }


def padded(version: str) -> list[int]:
    numbers = [int(part) for part in version.split(".")]
    return numbers + [0] * (3 - len(numbers))


def test_every_dependency_is_pinned_for_the_tests() -> None:
    names = {re.split("[>=]", line)[0].lower() for line in PROJECT["project"]["dependencies"]}
    assert names <= set(pins("constraints.txt"))


def test_every_file_of_the_package_that_is_no_python_is_declared() -> None:
    source, patterns = ROOT / "src" / "rattle", PROJECT["tool"]["setuptools"]["package-data"]["rattle"]
    files = [path for path in source.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert len(files) > 5
    names = [path.relative_to(source).as_posix() for path in files]
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    folders = {path.parent for path in source.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_there_are_workflows_for_tests_documents_and_releases() -> None:
    assert {path.stem for path in WORKFLOWS} >= {"test", "docs", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_there_are(path: Path) -> None:
    if path.stem == "docs" and not (ROOT / "mkdocs.yml").is_file():
        pytest.skip("the site is not in this tree")
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    called = {
        word
        for job in jobs(path).values()
        for step in job.get("steps", [])
        for word in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))
    }
    called |= {
        word for job in jobs(path).values() for word in job.get("strategy", {}).get("matrix", {}).get("target", [])
    }
    assert called <= targets, f"the Makefile has no {sorted(called - targets)}"
    assert called


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_says_more(path: Path) -> None:
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert plain["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        assert "id-token" not in job.get("permissions", {}) or "environment" in job, name
        assert all("@" in step["uses"] for step in job["steps"] if "uses" in step)
        # an expression inside a script is how an attacker's branch name becomes a command
        assert not any("${{ github." in step.get("run", "") for step in job["steps"])


def test_the_files_that_workflows_name_are_there() -> None:
    named = {name for path in WORKFLOWS for name in re.findall(r"\b[\w/-]+\.(?:py|txt|md)\b", path.read_text())}
    assert "tests/support/installed.py" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_matrix_of_tests_is_what_the_project_promises() -> None:
    for job in ("test", "wheel"):
        assert jobs(ROOT / ".github/workflows/test.yml")[job]["strategy"]["matrix"]["python"] == PYTHONS
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert f"Python {', '.join(PYTHONS[:-1])} and {PYTHONS[-1]}" in text("README.md")


def test_every_extra_is_installed_and_shown_somewhere() -> None:
    from rattle.cli.doctor import EXTRAS

    extras = {*PROJECT["project"]["optional-dependencies"]} - {"docs"}
    assert set(EXTRAS) == extras
    (installed,) = re.findall(r'--editable "\.\[(dev,.*)\]"', text("Makefile"))
    assert {*installed.split(",")} == extras
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("install.md")]
    assert any(all(f"`{extra}`" in page for extra in extras) for page in pages)


def test_pre_commit_uses_the_tools_of_the_tests() -> None:
    for repository in yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]:
        for hook in repository["hooks"]:
            for package, version in (each.split("==") for each in hook["additional_dependencies"]):
                assert pins("constraints.txt")[package.lower()] == version, hook["id"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_asks_for_what_is_needed(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert any(part.get("validations", {}).get("required") for part in fields)
    assert len({part["id"] for part in fields}) == len(fields)
