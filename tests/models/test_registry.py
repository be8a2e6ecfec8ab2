"""A model of one's own, registered at run time."""

import pytest
import torch
from torch import nn

from rattle.errors import RattleError
from rattle.models import create_model, find_head, list_models, register_model
from rattle.models.layers import Normalise
from rattle.models.registry import BUILDERS

HALF = ((0.5,) * 3, (0.5,) * 3)


class Linear(nn.Module):
    """A linear classifier of the channels' means."""

    def __init__(self, *, num_classes: int, in_channels: int, width: int = 1) -> None:
        super().__init__()
        self.head = nn.Linear(in_channels * width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean((2, 3)).repeat(1, self.head.in_features // x.shape[1]))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUILDERS, "known", dict(BUILDERS.entries))  # as before after the test
    register_model("mean-linear", Linear)


def test_a_registered_model_is_listed_and_created_by_name() -> None:
    assert list_models()[-1] == "mean-linear"
    model = create_model("mean-linear", classes=4, channels=3, width=2)
    assert model(torch.rand(5, 3, 8, 8)).shape == (5, 4)
    assert find_head(model).in_features == 6


def test_a_registered_model_without_normalisation_gets_it_in_front() -> None:
    model = create_model("mean-linear", classes=4, normalise=HALF)
    assert isinstance(model[0], Normalise)
    with pytest.raises(RattleError, match="images of 1 channels, but a mean and std of 3"):
        Normalise((0.5,) * 3, (0.5,) * 3)(torch.rand(2, 1, 4, 4))
    with pytest.raises(RattleError, match="mean-linear has no keyword 'activation'"):
        create_model("mean-linear", classes=4, activation="silu")


def test_a_registered_name_can_be_replaced_but_a_built_in_one_cannot() -> None:
    register_model("mean-linear", lambda classes: nn.Linear(2, classes))
    assert isinstance(create_model("mean-linear", classes=4), nn.Linear)
    for name in ("preact18", "file.py:build"):
        with pytest.raises(RattleError, match=r"is taken|no colon"):
            register_model(name, Linear)
