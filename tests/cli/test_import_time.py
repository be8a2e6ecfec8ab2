"""Commands that need no heavy library do not import one."""

import subprocess
import sys

import pytest


@pytest.mark.process
def test_listing_recipes_imports_nothing_that_is_slow_and_not_used() -> None:
    check = (
        "import sys; from rattle.cli import main; main(['recipes', 'digits']); "
        "slow = {'matplotlib', 'sklearn', 'scipy', 'pandas', 'tensorboard', 'plotly'} & set(sys.modules); "
        "sys.exit(' '.join(slow) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
