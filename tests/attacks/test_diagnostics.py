"""Warnings about models that are hard to evaluate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rattle.attacks.diagnostics import find_warnings, post_checks
from rattle.errors import RattleError


class Wrapped(nn.Module):
    def __init__(self, after=lambda z: z, classes: int = 10) -> None:
        super().__init__()
        self.after, self.body = after, nn.Sequential(nn.Flatten(), nn.Linear(75, classes))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(x))


def images() -> tuple[Tensor, Tensor]:
    return torch.rand(8, 3, 5, 5), torch.arange(8)


def test_a_plain_model_gets_no_warnings() -> None:
    assert find_warnings(Wrapped(), *images()) == []


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (lambda z: z.softmax(1), "probabilities"),
        (lambda z: z + 0.1 * torch.randn_like(z), "random"),
        (lambda z: z.round() + 0 * z, "whole numbers"),
        (lambda z: torch.zeros_like(z) + 0 * z + 0.5, "same logits"),
        (lambda z: z.detach(), "no gradient"),
        (lambda z: torch.relu(z - 1e6) + torch.arange(10) * 0.1 + z.detach(), "exactly zero"),
    ],
)
def test_each_flaw_is_named(after, words) -> None:
    found = find_warnings(Wrapped(after), *images())
    assert any(words in warning for warning in found), found


def test_a_model_that_optimises_while_predicting_is_named() -> None:
    class Purifies(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                (step,) = torch.autograd.grad(self.body(leaf).logsumexp(1).sum(), leaf)
            return self.body(x + 0.01 * step)

    assert any("computes gradients" in warning for warning in find_warnings(Purifies(), *images()))


def test_a_model_that_changes_while_predicting_is_named() -> None:
    class Counts(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            self.seen += len(x)
            return self.body(x)

    assert any("changes its weights or buffers" in warning for warning in find_warnings(Counts(), *images()))


@pytest.mark.parametrize(
    ("classes", "words"), [(2, "apgd-dlr maximises the margin"), (3, "targeted DLR"), (5, "4 targets, not 9")]
)
def test_few_classes_are_explained(classes, words) -> None:
    x, y = images()
    assert any(words in warning for warning in find_warnings(Wrapped(classes=classes), x, y % classes))


def test_view_models_are_told_to_flatten() -> None:
    class Views(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            return self.body(x.view(len(x), -1))

    assert any("channels-last" in warning for warning in find_warnings(Views(), *images()))


def test_models_that_return_no_logits_are_refused() -> None:
    for after, words in ((lambda z: {"scores": z}, "must return logits"), (lambda z: z / 0 * 0, "NaN")):
        with pytest.raises(RattleError, match=words):
            find_warnings(Wrapped(after), *images())


def test_the_model_is_left_as_it_was() -> None:
    model = Wrapped().train()
    engine = torch.autograd._engine_run_backward
    find_warnings(model, *images())
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert torch.autograd._engine_run_backward is engine


def test_results_are_checked_by_attack_and_by_component() -> None:
    found = post_checks({"autoattack": 0.45, "pgd20": 0.4}, {"autoattack": {"apgd-ce": 0.5, "square": 0.45}})
    assert len(found) == 2
    assert found[0].startswith("robust accuracy rises from 40.00% under pgd20 to 45.00% under the stronger autoattack")
    assert found[1].startswith("square broke another 5.00%")
    assert post_checks({"pgd20": 0.4, "autoattack": 0.4}, {"a": {"apgd-ce": 0.4, "square": 0.399}}) == []
    assert post_checks({}, {"a": {"square": 0.4}}) == []
