"""The paper's method in a training loop of your own: the attack, the loss, noise and AWP, and a plain optimizer.

Run it: python examples/own_loop.py
"""

import torch
from torch import nn

import rattle

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
)
digits = rattle.Recipe().data.load()
x, y = digits.train.x / 255, digits.train.y
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

threat = rattle.Threat(norm="linf", epsilon=0.2)
inner_attack = rattle.PGD(threat=threat, steps=5, step_size=0.08, loss="kl", start="gaussian")
objective = rattle.Trades(taylor=rattle.Taylor(order=2))
noise, awp = rattle.Noise(sigma=0.01), rattle.AWP(gamma=0.005, warmup=0)


def main(epochs: int = 10) -> float:
    """Train, and return the accuracy under PGD-20."""
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            with rattle.perturbed(model, noise(model)):  # the inner maximisation at w + u
                x_adv = inner_attack(model, x[rows], y[rows])

            def loss(rows: torch.Tensor = rows, x_adv: torch.Tensor = x_adv) -> torch.Tensor:
                return rattle.compute_loss(objective, model, x[rows], x_adv, y[rows])

            optimizer.zero_grad()
            with rattle.perturbed(model, awp(model, awp.gradients(model, loss))):  # the outer step at w + v
                loss().backward()
            optimizer.step()
    result = rattle.evaluate(model, digits.test.x[:200], digits.test.y[:200], "pgd20", threat=threat)
    print(result)
    return result.robust_accuracy


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
