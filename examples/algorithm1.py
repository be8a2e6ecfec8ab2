"""Algorithm 1 of "Randomized Adversarial Training via Taylor Expansion" (CVPR 2023) in plain sight: torch only.

The specification that the library is held to: a test runs both, step by step, and wants equal losses and gradients.
Slow and literal on purpose. Run it: python examples/algorithm1.py
"""

import torch
from torch import nn
from torch.nn import functional as F


def kl(p_logits, q_logits):
    """KL(softmax(p) || softmax(q)), mean over the minibatch."""
    return F.kl_div(F.log_softmax(q_logits, 1), F.log_softmax(p_logits, 1), log_target=True, reduction="batchmean")


def matrices(model):
    """The weights that are perturbed: every tensor with more than one dimension."""
    return {name: p for name, p in model.named_parameters() if p.ndim > 1}


def sample_u(model, sigma, generator):
    """u ~ N(0, sigma^2)."""
    return {name: sigma * torch.randn(p.shape, generator=generator) for name, p in matrices(model).items()}


def shift(model, delta):
    """w <- w + delta, returning what w was."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in matrices(model).items():
            p.add_(delta[name])
    return before


def put_back(model, w):
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(w[name])


def adversarial_examples(model, s, start_noise, epsilon, step_size, K):
    """s' <- s + 0.001 N(0, I); K times s' <- projection(s' + eta_s sign grad L(f_{w+u}(s), f_{w+u}(s')))."""
    model.eval()
    s_adv = s + 0.001 * start_noise
    for _ in range(K):
        s_adv = s_adv.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(kl(model(s).detach(), model(s_adv)), s_adv)
        s_adv = s_adv.detach() + step_size * gradient.sign()
        s_adv = torch.min(torch.max(s_adv, s - epsilon), s + epsilon).clamp(0, 1)
    model.train()
    return s_adv.detach()


def row_sums(features, logits, y):
    """sum_i d CE / d W_head[j, i], for every class j (Appendix D), by automatic differentiation."""
    W = logits.new_zeros(logits.shape[1], features.shape[1], requires_grad=True)
    z = features.detach() @ W.t() + logits.detach()  # a zero added to the head: the same derivative by it
    return torch.autograd.grad(F.cross_entropy(z, y), W)[0].sum(1)


def soft_labels(gap):
    """For class k: the gap without entry k, scaled to mass c = 1 - 2/C, and 1 - c on k itself."""
    C = len(gap)
    c = 1 - 2 / C
    gap = gap - gap.min()
    rows = []
    for k in range(C):
        others = gap.clone()
        others[k] = 0
        row = others / others.sum() * c if others.sum() > 0 else torch.full_like(gap, c / (C - 1))
        row[k] = 1 - c
        rows.append(row)
    return torch.stack(rows)


def taylor_term(value, value_adv, z, z_adv, y):
    """1/2 [KL(T+[y] || p(s')) + KL(T-[y] || p(s))]."""
    T_plus, T_minus = soft_labels(value - value_adv), soft_labels(value_adv - value)
    to_adv = F.kl_div(F.log_softmax(z_adv, 1), T_plus[y], reduction="batchmean")
    to_clean = F.kl_div(F.log_softmax(z, 1), T_minus[y], reduction="batchmean")
    return 0.5 * (to_adv + to_clean)


def loss_terms(model, s, s_adv, y, order, eta, inv_lambda):
    """L(f(s), y) + L(g_s, g_s')/lambda + eta * first + eta/2 * second."""
    h = model.features(s)
    h_adv = model.features(s_adv)
    z, z_adv = model.head(h), model.head(h_adv)
    terms = {"clean": F.cross_entropy(z, y), "zeroth": inv_lambda * kl(z, z_adv)}
    r, r_adv = row_sums(h, z, y), row_sums(h_adv, z_adv, y)
    if order >= 1:
        terms["first"] = eta * taylor_term(r.abs(), r_adv.abs(), z, z_adv, y)
    if order >= 2:
        terms["second"] = eta / 2 * taylor_term(r**2, r_adv**2, z, z_adv, y)
    return terms


def awp_direction(model, loss, gamma):
    """v_l = gamma ||w_l|| d_l / ||d_l|| for every weight matrix, d the gradient of the full loss (Wu et al. 2020)."""
    weights = matrices(model)
    gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
    return {name: gamma * p.detach().norm() / gradients[name].norm() * gradients[name] for name, p in weights.items()}


def step(model, optimizer, s, y, start_noise, generator, *, order=2, eta=0.2, inv_lambda=6.0, sigma=0.01, gamma=None,
         epsilon=8 / 255, step_size=2 / 255, K=10):  # fmt: skip
    """One minibatch of Algorithm 1, on TRADES or (with gamma) on AWP-TRADES."""
    w = shift(model, sample_u(model, sigma, generator))  # sample u
    s_adv = adversarial_examples(model, s, start_noise, epsilon, step_size, K)
    put_back(model, w)
    if gamma is not None:  # AWP: optimise at w + v, BatchNorm's running statistics as they were
        statistics = {name: b.clone() for name, b in model.named_buffers()}
        v = awp_direction(model, sum(loss_terms(model, s, s_adv, y, order, eta, inv_lambda).values()), gamma)
        for name, b in model.named_buffers():
            b.copy_(statistics[name])
        shift(model, v)
    terms = loss_terms(model, s, s_adv, y, order, eta, inv_lambda)
    optimizer.zero_grad()
    torch.stack(list(terms.values())).sum().backward()
    put_back(model, w)
    optimizer.step()
    return {name: float(value.detach()) for name, value in terms.items()}


class Network(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(8 * 64, classes)

    def forward(self, s):
        return self.head(self.features(s))


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    y = torch.arange(64) % 4
    s = (torch.rand(64, 1, 8, 8) * 0.5 + y.view(-1, 1, 1, 1) * 0.12).clamp(0, 1)
    for i in range(10):
        print(i, step(model, optimizer, s, y, torch.randn(s.shape, generator=generator), generator))
