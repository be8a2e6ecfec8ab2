"""The public state of the art (Wang et al. 2023): Gowal's TRADES on generated images, with smoothed labels."""

from dataclasses import dataclass, replace

from rattle.forward import ForwardSpec
from rattle.objectives import gowal
from rattle.objectives.gowal import Gowal
from rattle.settings import BelowOne, NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class Wang2023(Gowal):
    """Gowal's loss with other weights; BatchNorm's running statistics are those of x and x'."""

    uses = ForwardSpec()
    inv_lambda: NonNegative = 5.0  # 1/lambda, weight of the zeroth term
    smoothing: BelowOne = 0.1  # mass spread over all C classes


METHOD = replace(
    gowal.METHOD,
    objective=Wang2023(),
    length=2.0,
    settings={
        **gowal.METHOD.settings,
        "schedule": {"kind": "OneCycle", "shape": "cosine", "peak": 0.025},
        "data.extra_fraction": 0.7,  # which asks for --data.extra
    },
)
