"""RATTLE: randomized adversarial training via Taylor expansion. The public names, imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rattle.attacks import PGD as PGD
    from rattle.evaluation.evaluate import evaluate as evaluate
    from rattle.objectives import AT as AT
    from rattle.objectives import Trades as Trades
    from rattle.recipes.recipe import Recipe as Recipe
    from rattle.runs.load import load as load
    from rattle.threat import Threat as Threat
    from rattle.training.loop import fit as fit
    from rattle.weights import AWP as AWP
    from rattle.weights import EMA as EMA
    from rattle.weights import SWA as SWA
    from rattle.weights import Noise as Noise

PUBLIC = {
    "AT": "objectives",
    "AWP": "weights",
    "EMA": "weights",
    "Noise": "weights",
    "PGD": "attacks",
    "Recipe": "recipes.recipe",
    "SWA": "weights",
    "Threat": "threat",
    "Trades": "objectives",
    "evaluate": "evaluation.evaluate",
    "fit": "training.loop",
    "load": "runs.load",
}
__all__ = list(PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'rattle' has no attribute {name!r}")
    return getattr(import_module(f"rattle.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
