"""Mistakes are told before torch is imported, in the words of the command itself, and nothing valid is refused."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rattle.attacks.registry import BUILT_IN, list_attacks
from rattle.cli import early, names
from rattle.cli.main import COMMANDS
from rattle.errors import RattleError
from rattle.objectives.registry import METHODS
from rattle.recipes.catalog import get_recipe, list_recipes
from rattle.recipes.schema import to_plain

RECIPE = "digits-linf-cnn-trades-2nd"
MISTAKES = [
    (["evaluate", "nowhere", "--attacks", "pgd20", "pdg20"], "unknown attack 'pdg20'; did you mean 'pgd20'?"),
    (["evaluate", "nowhere", "--atacks", "pgd20"], "unknown option of rattle evaluate '--atacks'; did you mean '--att"),
    (["evaluate", "nowhere"], "there is no run or checkpoint nowhere"),
    (["train", "digits-linf-cnn-trade"], "unknown recipe 'digits-linf-cnn-trade'; did you mean 'digits-linf-cnn-trade"),
    (["train", "nowhere.yaml"], "there is no recipe file nowhere.yaml"),
    (["train", RECIPE, "--epoch", "3"], "unknown option of rattle train '--epoch'; did you mean '--epochs'?"),
    (["train", RECIPE, "--objective.taylor.etta", "3"], "did you mean '--objective.taylor.eta'?"),
    (["sweep", RECIPE, "--seed", "0", "--epoch=3"], "unknown option of rattle sweep '--epoch'"),
    (["transfer", "--from", "nowhere", "--to", "nowhere"], "there is no run or checkpoint nowhere"),
    (["landscape", "nowhere"], "there is no run folder nowhere"),
    (["report", "nowhere"], "there is no run folder nowhere"),
    (["export", "nowhere"], "there is no run or checkpoint nowhere"),
    (["fidelity", "nowhere"], "there is no run or checkpoint nowhere"),
    (["data", "get", "cifar"], "unknown dataset to download 'cifar'; did you mean 'cifar10'?"),
    (["data", "gte", "cifar"], "unknown rattle data 'gte'; did you mean 'get'?"),
    (["recipes", "nonesuch"], "no recipe's name contains 'nonesuch'; `rattle recipes --all` lists all"),
    (["paper", "9"], "the paper has no Table 9; its tables are numbered 1 to 8"),
]


def test_mistakes_are_told_before_torch_or_any_other_heavy_package_is_imported() -> None:
    code = (
        "import sys; from rattle.cli import main\n"
        f"for args in {[args for args, _ in MISTAKES]!r}: assert main(args) == 2\n"
        "sys.exit(' '.join({'torch', 'numpy', 'matplotlib', 'scipy', 'sklearn', 'rattle.data'} & {*sys.modules}) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    said = answer.stderr.splitlines()
    assert answer.returncode == 0, answer.stderr
    for line, (_, sentence) in zip(said, MISTAKES, strict=True):
        assert line.startswith("rattle: ")
        assert sentence in line


def test_names_read_from_the_source_are_those_of_the_registries() -> None:
    """Those of the package: other tests may have registered more."""
    assert {*BUILT_IN} == {*names.keys(names.ATTACKS, "ATTACKS")}
    assert names.attacks() == [name for name in list_attacks() if names.is_attack(name)]
    assert all(map(names.is_attack, [*BUILT_IN, "pgd", "pgd1", "cw100", "autoattack-fast"]))
    assert not any(map(names.is_attack, ["pgd0", "pdg20", "fgsm2"]))
    own = [name for name, method in METHODS.items() if type(method.objective).__module__.startswith("rattle.")]
    assert sorted(names.methods()) == sorted(own)  # a test that takes one out and puts it back moves it to the end
    listed = [name for name in list_recipes() if names.is_recipe(name)]
    assert len(listed) >= 4 * len(own)
    assert {*listed} <= {*names.recipes()}
    assert names.is_recipe("cifar10-l2-wrn16-4-trades-2nd-released-fast")
    assert not any(map(names.is_recipe, ["digits-linf-cnn-trade", "digit-linf-cnn-at", "digits-l3-cnn-at"]))


def leaves(settings: dict[str, Any], prefix: str = "--") -> list[str]:
    """The options that set the values of plain data."""
    found = []
    for name, value in settings.items():
        whole = prefix + name.replace("_", "-")
        found += leaves(value, f"{whole}.") if isinstance(value, dict) else [whole]
    return [option for option in found if option != "--objective.kind"]  # written into YAML only


@pytest.mark.parametrize("recipe", ["digits-linf-cnn-trades-awp-2nd-fast", "cifar10-l2-vgg16-trades-2nd-released"])
def test_no_setting_of_a_recipe_is_refused(recipe: str) -> None:
    early.look("train", [recipe, *leaves(to_plain(get_recipe(recipe)))])
    early.look("sweep", [recipe, *leaves(to_plain(get_recipe(recipe))), "--seeds", "--slurm.gpus"])


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("data", "train", "doctor")])
def test_no_field_of_a_command_is_refused(command: str) -> None:
    module = importlib.import_module(f"rattle.cli.{command}")
    given = {field.name.rstrip("_").replace("_", "-") for field in dataclasses.fields(module.Options)}
    own = {*names.options(f"rattle.cli.{command}")} | {f"--{name}" for name in names.positionals(module.__name__)}
    nested = {option.split(".")[0] for option in own}
    assert {f"--{name}" for name in given} - {"--config"} <= nested


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("train", ["custom", "--method", "trades"]),
        ("train", ["my-own", "--help"]),
        ("evaluate", ["--model", "net.py:build", "--weights", "w.pt", "--data", "x.npz", "--threat.epsilon=8/255"]),
        ("evaluate", ["hf:owner/name", "--attacks", "my_attack.py:build", "--save_adversarial"]),
        ("evaluate", ["--attacks", "pgd20", "--pgd20.step-size", "0.01"]),
        ("data", ["show", "digits", "--whatever"]),
        ("data", ["get", "digits"]),
        ("data", ["get", "--root", "x", "cifar10"]),
        ("data", ["get"]),
        ("paper", ["1", "--scale", "tiny"]),
        ("recipes", []),
    ],
)
def test_what_only_the_command_can_judge_is_left_to_it(
    command: str, args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    early.check(command, args)


def test_an_objective_of_a_run_folder_may_have_settings_of_its_own(tmp_path: Path) -> None:
    early.look("train", [str(tmp_path), "--objective.sharpness", "0.2"])
    with pytest.raises(RattleError, match=r"--objective\.sharpness"):
        early.look("train", [RECIPE, "--objective.sharpness", "0.2"])


def test_source_that_reads_otherwise_refuses_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(names, "SOURCE", tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    names.tree.cache_clear()
    early.check("evaluate", ["nowhere", "--attacks", "pdg20"])
