"""Models for torch.hub: torch.hub.load("OWNER/rattle", "rattle_model", "zoo:digits-linf-cnn-trades-2nd")."""

import sys as _sys
from pathlib import Path as _Path

dependencies = ["torch", "numpy", "safetensors", "yaml"]

_sys.path.insert(0, str(_Path(__file__).parent / "src"))  # torch.hub does not install what it downloads


def rattle_model(name: str = "zoo:digits-linf-cnn-trades-2nd", averaged: bool = True):
    """A trained model in evaluation mode, which takes images in [0, 1].

    name: `zoo:NAME` (offline; `rattle_zoo` lists them), `hf:OWNER/NAME`, a run folder or a checkpoint. averaged: take
    the averaged weights if the run has them.
    """
    from rattle import load

    return load(name, averaged=averaged)


def rattle_zoo() -> list[str]:
    """The names of the trained models in the package."""
    from rattle import list_zoo

    return list_zoo()
