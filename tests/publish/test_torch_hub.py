"""hubconf.py: torch.hub finds the models in a copy of the sources that is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CODE = """
import torch
model = torch.hub.load(SOURCE, "rattle_model", "zoo:digits-linf-cnn-trades-2nd", source="local")
names = torch.hub.load(SOURCE, "rattle_zoo", source="local")
import rattle
print(tuple(model(torch.rand(2, 1, 8, 8)).shape), "digits-linf-cnn-at" in names, rattle.__file__.startswith(SOURCE))
"""


@pytest.mark.process
@pytest.mark.slow
def test_it_needs_no_installation(tmp_path: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", f"SOURCE = {str(ROOT)!r}\n{CODE}"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 10) True True"


def test_torch_hub_loads_a_model_of_the_zoo_and_finds_documented_entry_points_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch.hub takes every public callable of the file for a model."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    model = torch.hub.load(str(ROOT), "rattle_model", "zoo:digits-linf-cnn-trades-2nd", source="local")
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    found: dict = {}
    exec((ROOT / "hubconf.py").read_text(), {"__name__": "hubconf", "__file__": str(ROOT / "hubconf.py")}, found)
    offered = {name: value.__doc__ for name, value in found.items() if callable(value) and not name.startswith("_")}
    assert set(offered) == {"rattle_model", "rattle_zoo"}
    assert all(offered.values())
