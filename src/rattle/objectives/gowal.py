"""TRADES as Gowal et al. (2020) train it: SiLU, an average of the weights, statistics of x' alone; smoothed labels."""

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn import functional as F

from rattle.attacks import PGD
from rattle.forward import ForwardSpec
from rattle.objectives import trades
from rattle.objectives.trades import Trades
from rattle.settings import BelowOne
from rattle.weights import EMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Gowal(Trades):
    """CE(f(x), q) + (1/lambda) KL(p(x) || p(x')) + Taylor terms: q has smoothing / C on each class, the rest on y."""

    title = "TRADES (Gowal)"
    uses = ForwardSpec(hold_clean=True)  # x is normalised by its batch, but running statistics are those of x'
    smoothing: BelowOne = 0.0  # mass spread over all C classes, of soft labels too

    def clean_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, label_smoothing=self.smoothing)


METHOD = replace(
    trades.METHOD,
    objective=Gowal(),
    attack=PGD(loss="kl", start="uniform"),
    drops=(2 / 3,),
    batch_size=512,
    rate=2.0,  # 0.1 for 256 images, in proportion
    average=EMA(decay=0.995, start=0.025, warmup=True),
    settings={
        "activation": "silu",
        "normalise": True,
        "batch_norm_momentum": 0.01,
        "optimizer.nesterov": True,
        "optimizer.decay_norms": False,
    },
)
