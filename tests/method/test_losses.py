"""Per-sample losses against hand-computed values."""

import math

import pytest
import torch

from rattle import losses

Z = torch.tensor([[2.0, 0.0, 0.0], [1.0, 3.0, 2.5]])
Y = torch.tensor([0, 2])


def test_ce_is_minus_the_log_of_the_labels_probability() -> None:
    total = [math.exp(2) + 2, math.exp(1) + math.exp(3) + math.exp(2.5)]
    assert losses.ce(Z, Y).tolist() == pytest.approx([math.log(total[0]) - 2, math.log(total[1]) - 2.5], rel=1e-6)


def test_kl_is_the_divergence_of_the_clean_from_the_adversarial() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.5, 0.25]])
    assert float(losses.kl(p.log(), q.log())) == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5), rel=1e-5)
    assert losses.kl(Z, Z).tolist() == pytest.approx([0, 0], abs=1e-7)


def test_kl_and_its_gradient_stay_finite_where_probabilities_vanish() -> None:
    z, z_adv = (torch.tensor(v, requires_grad=True) for v in ([[500.0, 0.0, -500.0]], [[-500.0, 0.0, 500.0]]))
    value = losses.kl(z, z_adv).sum()
    value.backward()
    assert value.item() == pytest.approx(1000)
    assert z.grad.isfinite().all()
    assert z_adv.grad.isfinite().all()


def test_kl_to_target_takes_zeros_and_hard_labels_give_the_cross_entropy() -> None:
    hard = torch.eye(3)[Y]
    assert torch.allclose(losses.kl_to_target(hard, Z), losses.ce(Z, Y))
    assert torch.allclose(losses.kl_to_target(Z.softmax(1), Z.flip(1)), losses.kl(Z, Z.flip(1)), atol=1e-6)


def test_cw_is_positive_exactly_where_misclassified() -> None:
    assert losses.cw(Z, Y).tolist() == pytest.approx([-2, 0.5])


def test_dlr_does_not_change_with_the_scale_or_offset_of_the_logits() -> None:
    z = torch.tensor([[1.0, 3.0, 2.5, -1.0]])
    y, target = torch.tensor([2]), torch.tensor([0])
    assert float(losses.dlr(z, y)) == pytest.approx(0.5 / 2)
    assert float(losses.dlr_targeted(z, y, target)) == pytest.approx(-1.5 / (3 - 0))
    assert float(losses.dlr(7 * z + 3, y)) == pytest.approx(0.5 / 2)
    assert float(losses.dlr_targeted(7 * z + 3, y, target)) == pytest.approx(-1.5 / (3 - 0))
