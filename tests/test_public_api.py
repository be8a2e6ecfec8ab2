"""The public names: there, documented, and imported only when used."""

import inspect
import subprocess
import sys

import pytest

import rattle


@pytest.mark.parametrize("name", sorted(rattle.__all__))
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(rattle, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)
    assert value.__module__.startswith("rattle.")


def test_evaluate_stays_a_function_however_often_it_is_used() -> None:
    """No file of the top room is called evaluate.py: importing it would put the module in the function's place."""
    from rattle.evaluation.evaluate import evaluate

    assert inspect.isfunction(rattle.evaluate)
    assert rattle.evaluate is evaluate


def test_the_promised_names_are_public() -> None:
    promised = {"Threat", "PGD", "AT", "Trades", "fit", "load", "evaluate", "Recipe", "Noise", "AWP", "SWA", "EMA"}
    assert promised <= set(rattle.__all__)
    assert dir(rattle) == sorted(rattle.__all__)


@pytest.mark.parametrize("name", ["Threat", "PGD", "AT", "Trades", "fit", "evaluate"])
def test_docstrings_carry_an_example_that_the_suite_runs(name: str) -> None:
    assert ">>> " in inspect.getdoc(getattr(rattle, name))


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rattle' has no attribute 'Tradez'"):
        rattle.Tradez  # noqa: B018


@pytest.mark.process
def test_import_rattle_imports_no_torch() -> None:
    check = "import sys, rattle; assert rattle.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0


@pytest.mark.process
def test_import_rattle_is_enough_for_its_modules() -> None:
    check = "import rattle; rattle.models.Normalise; rattle.integrations.AutoAttack; rattle.data.Augment"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0
