"""Single precision is enough for every reading of the Taylor terms, also where a term is a millionth of the loss."""

from __future__ import annotations

import copy

import torch

from rattle.inputs import to_float
from reproduction.taylor_conditioning import READINGS, measured
from support.tiny_runs import digits, small_cnn


def test_values_and_gradients_of_every_term_agree_with_double_precision() -> None:
    _, _, x, y = digits()
    x, y = to_float(x[:16]).double(), y[:16]
    x_adv = (x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)).clamp(0, 1)
    model = copy.deepcopy(small_cnn()).double().train()  # what tests share stays as it is
    for name, (objective, noise) in READINGS.items():
        for term, numbers in measured(model, objective, noise, (x, x_adv, y), 0).items():
            assert numbers["value_error"] < 1e-4, (name, term)
            assert numbers["gradient_error"] < 1e-3, (name, term)
