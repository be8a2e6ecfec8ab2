"""RATTLE: randomized adversarial training via Taylor expansion. The public names, imported when first used."""

from typing import TYPE_CHECKING

from rattle.registry import lazy_names

__version__ = "0.2.0"  # the one place; pyproject.toml reads it

if TYPE_CHECKING:
    from rattle.analysis.trace import frontier as frontier
    from rattle.attacks import PGD as PGD
    from rattle.attacks.registry import get_attack as get_attack
    from rattle.attacks.registry import list_attacks as list_attacks
    from rattle.attacks.registry import register_attack as register_attack
    from rattle.data.sources import list_datasets as list_datasets
    from rattle.data.sources import register_source as register_source
    from rattle.errors import RattleError as RattleError
    from rattle.evaluation.benchmark import benchmark as benchmark
    from rattle.evaluation.evaluate import evaluate as evaluate
    from rattle.integrations.loop import RobustAccuracy as RobustAccuracy
    from rattle.integrations.loop import RobustLoss as RobustLoss
    from rattle.models.layers import Normalise as Normalise
    from rattle.models.registry import create_model as create_model
    from rattle.models.registry import list_models as list_models
    from rattle.models.registry import register_model as register_model
    from rattle.objectives import ALP as ALP
    from rattle.objectives import AT as AT
    from rattle.objectives import S2OAT as S2OAT
    from rattle.objectives import LabelSmoothing as LabelSmoothing
    from rattle.objectives import Mart as Mart
    from rattle.objectives import Method as Method
    from rattle.objectives import S2OTrades as S2OTrades
    from rattle.objectives import Taylor as Taylor
    from rattle.objectives import Trades as Trades
    from rattle.objectives import register_method as register_method
    from rattle.objectives.loss import compute_loss as compute_loss
    from rattle.publish.push import push as push
    from rattle.randomized import Randomized as Randomized
    from rattle.recipes.catalog import get_recipe as get_recipe
    from rattle.recipes.catalog import make_recipe as make_recipe
    from rattle.recipes.names import list_recipes as list_recipes
    from rattle.recipes.recipe import Recipe as Recipe
    from rattle.runs.load import load as load
    from rattle.runs.zoo import list_zoo as list_zoo
    from rattle.threat import Threat as Threat
    from rattle.training.harden import harden as harden
    from rattle.training.loop import fit as fit
    from rattle.weights import ASAM as ASAM
    from rattle.weights import AWP as AWP
    from rattle.weights import EMA as EMA
    from rattle.weights import SAM as SAM
    from rattle.weights import SWA as SWA
    from rattle.weights import Noise as Noise
    from rattle.weights import perturbed as perturbed

ROOMS = {
    "analysis.trace": ["frontier"],
    "attacks": ["PGD"],
    "attacks.registry": ["get_attack", "list_attacks", "register_attack"],
    "data.sources": ["list_datasets", "register_source"],
    "errors": ["RattleError"],
    "evaluation.benchmark": ["benchmark"],
    "evaluation.evaluate": ["evaluate"],
    "integrations.loop": ["RobustAccuracy", "RobustLoss"],
    "models.layers": ["Normalise"],
    "models.registry": ["create_model", "list_models", "register_model"],
    "objectives": [
        "ALP",
        "AT",
        "LabelSmoothing",
        "Mart",
        "Method",
        "S2OAT",
        "S2OTrades",
        "Taylor",
        "Trades",
        "register_method",
    ],
    "objectives.loss": ["compute_loss"],
    "publish.push": ["push"],
    "randomized": ["Randomized"],
    "recipes.catalog": ["get_recipe", "make_recipe"],
    "recipes.names": ["list_recipes"],
    "recipes.recipe": ["Recipe"],
    "runs.load": ["load"],
    "runs.zoo": ["list_zoo"],
    "threat": ["Threat"],
    "training.harden": ["harden"],
    "training.loop": ["fit"],
    "weights": ["ASAM", "AWP", "EMA", "SAM", "SWA", "Noise", "perturbed"],
}
__all__ = sorted(name for names in ROOMS.values() for name in names)  # pyright: ignore[reportUnsupportedDunderAll]


__getattr__ = lazy_names("rattle", ROOMS)


def __dir__() -> list[str]:
    return sorted(__all__)
