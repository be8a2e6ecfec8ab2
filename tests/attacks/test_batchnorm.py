"""BatchNorm folded into convolutions: a copy with the same logits and gradients, or none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rattle.attacks.batchnorm import fold_batchnorm
from rattle.attacks.registry import get_attack
from rattle.evaluation.evaluate import evaluate
from rattle.threat import Threat
from support.attack_cases import SmallNet


class Residual(nn.Module):
    """A kernel used twice, a BatchNorm after a sum, and one after a convolution that others read too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.shared, self.norm_a, self.norm_b = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = self.norm(h) + h
        a = F.silu(self.norm_a(self.shared(h)))
        b = self.norm_b(self.shared(a) + h)
        return self.head(b.mean((2, 3)))


def with_random_norms(model: nn.Module) -> nn.Module:
    """BatchNorms with statistics and weights of their own."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)
    return model.eval()


def test_the_folded_copy_gives_the_models_logits_and_leaves_it_alone() -> None:
    model, x = with_random_norms(SmallNet()), torch.rand(3, 2, 6, 6)
    before, kernel = copy.deepcopy(model.state_dict()), model.body[0].weight
    folded = fold_batchnorm(model, x)
    assert folded is not None
    assert not any(isinstance(node.target, str) and node.target == "body.1" for node in folded.graph.nodes)
    torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.body[0].weight is kernel
    assert kernel.is_contiguous()


def test_a_kernel_used_twice_is_never_folded_wrongly() -> None:
    model, x = with_random_norms(Residual()), torch.rand(3, 2, 6, 6)
    folded = fold_batchnorm(model, x)
    if folded is not None:
        torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-5)


class Noisy(SmallNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(5)


class Branches(SmallNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.mean() > 0 else super().forward(1 - x)


class Masks(SmallNet):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = super().forward(x)
        return hidden + self.head(x.mean((1, 2, 3))[:, None].expand(-1, 216))


class Crowded(SmallNet):
    """Traced faithfully, but the answer to an image depends on how many are asked about."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * x.shape[0]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Noisy, "it draws at random"),
        (Branches, "it cannot be traced (symbolically traced variables cannot be used as inputs to control flow)"),
        (Masks, "the copy gives other logits or gradients"),
        (Crowded, "what it answers to an image changes with the size of the batch"),
    ],
)
def test_what_cannot_be_traced_faithfully_is_not_folded_and_that_is_said_once(
    kind: type[SmallNet], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_random_norms(kind())
    for _ in range(2):
        assert fold_batchnorm(model, torch.rand(3, 2, 6, 6)) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"attacks ask the network itself, not a faster copy: {reason}"
    ]


@pytest.mark.parametrize("kind", [SmallNet, Branches, Masks, Crowded])
def test_verdicts_do_not_depend_on_whether_the_copy_was_asked(
    kind: type[SmallNet], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = with_random_norms(kind()), torch.rand(40, 2, 6, 6)
    y = model(x).argmax(1)
    attack = get_attack("smoke-ensemble", Threat(epsilon=0.02))
    found = evaluate(model, x, y, {"whole": attack}).attacks["whole"]
    monkeypatch.setattr("rattle.attacks.rows.fold_batchnorm", lambda *_: None)
    plain = evaluate(model, x, y, {"whole": attack}).attacks["whole"]
    assert found.flags == plain.flags
    assert found.parts == plain.parts
    assert 0 < sum(found.flags) < len(x)


def test_a_model_without_batchnorm_is_not_folded() -> None:
    assert fold_batchnorm(nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), torch.rand(3, 2, 6, 6)) is None
