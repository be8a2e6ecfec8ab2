"""A model under attack as a function of flat rows [n, d], in the memory layout that it runs fastest in."""

import logging
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rattle.attacks.base import check_labels, finite, logits_of
from rattle.attacks.batchnorm import fold_batchnorm

log = logging.getLogger("rattle")

CHANNELS_LAST: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # what each model was found to accept


@torch.no_grad()
def accepts_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Whether the model runs on channels-last images like x; tried once per model, with one warning if it does not."""
    if x.ndim != 4:
        return False
    if model not in CHANNELS_LAST:
        try:
            logits_of(model, x[:2].contiguous(memory_format=torch.channels_last))
            CHANNELS_LAST[model] = True
        except RuntimeError:
            logits_of(model, x[:2].contiguous())  # raises again if the layout was not the reason
            CHANNELS_LAST[model] = False
            log.warning("the model does not take channels-last images (it flattens by .view?); attacks run slower")
    return CHANNELS_LAST[model]


class FlatModel:
    """A model called with flat images [n, d], so that per-image sums, packing and projections need no copies.

    Create it inside `attack_mode(model)`.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.shape = model, x.shape[1:]
        self.channels_last = accepts_channels_last(model, x)
        self.model = fold_batchnorm(model, self.images(self.flat(x[:2]))) or model

    def flat(self, x: Tensor) -> Tensor:
        """Images [n, ...] as rows [n, d]."""
        return (x.permute(0, 2, 3, 1) if self.channels_last else x).reshape(len(x), -1)

    def images(self, rows: Tensor) -> Tensor:
        """Rows [n, d] as images [n, ...]: a view."""
        if not self.channels_last:
            return rows.view(-1, *self.shape)
        channels, height, width = self.shape
        return rows.view(-1, height, width, channels).permute(0, 3, 1, 2)

    def logits(self, rows: Tensor) -> Tensor:
        return finite(logits_of(self.model, self.images(rows)))

    @torch.no_grad()
    def clean_logits(self, rows: Tensor, y: Tensor) -> Tensor:
        """Logits of the unattacked images; refuses labels that the model has no logit for."""
        logits = self.logits(rows)
        check_labels(logits, y)
        return logits
