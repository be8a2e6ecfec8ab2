"""The fused optimizer of a run takes the steps of the plain one."""

import torch
from torch.nn import functional as F

from rattle.models.registry import create_model
from rattle.recipes.catalog import get_recipe
from rattle.training.state import make_optimizer


def test_the_fused_optimizer_takes_the_plain_step() -> None:
    recipe = get_recipe("digits-linf-cnn-trades")
    weights = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = create_model("cnn", classes=3, width=4)
        optimizer = make_optimizer(recipe, model)
        assert optimizer.defaults["fused"]
        if not fused:
            o = recipe.optimizer
            optimizer = torch.optim.SGD(
                model.parameters(), lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay, foreach=False
            )
        for seed in range(3):
            torch.manual_seed(seed)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.rand(8, 3, 8, 8)), torch.arange(8) % 3).backward()
            optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*weights, atol=1e-6)
