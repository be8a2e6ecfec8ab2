"""The ensembles that AutoAttack is run on are those of the study."""

import pytest
import torch

from rattle.models.registry import create_model
from rattle.randomized import Randomized
from rattle.weights import Noise
from reproduction.random_ensembles import NOISES, Drawn


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_networks_made_once_are_the_fixed_ensemble(noise: Noise) -> None:
    torch.manual_seed(0)
    model = create_model("cnn-strided", classes=10).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ensemble, x = Randomized(model, noise, 3, seed=2), torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(Drawn(ensemble)(x), ensemble(x))
        assert not torch.allclose(ensemble(x), Randomized(model, noise, 3, seed=3)(x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
