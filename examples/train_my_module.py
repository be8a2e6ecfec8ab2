"""Train a module and tensors of your own, then measure it. docs/guides/own-model.md explains each line."""

import sys
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn

import rattle

pixels, y = load_digits(return_X_y=True)  # 1797 grey images of 8x8 pixels, values 0 to 16
x = (pixels.reshape(-1, 1, 8, 8) / 16).astype("float32")
x_test, y_test = x[1400:], y[1400:]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1)
        )
        self.fc = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x).view(len(x), -1))


def main(out: str, epochs: int = 10) -> float:
    """Train into the folder `out`, and return the accuracy under PGD-20."""
    torch.manual_seed(0)
    model = Net()
    recipe = rattle.make_recipe("trades-2nd", epsilon=0.1, epochs=epochs)
    rattle.fit(recipe, out, model=model, data=(x[:1400], y[:1400]))
    best = rattle.load(out, model=model)
    result = rattle.evaluate(best, x_test, y_test, "pgd20", epsilon=0.1)
    print(result)
    return result.robust_accuracy


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
