"""An ordinary classifier, trained in plain torch, for `rattle harden`: 48x48 pictures in class folders, and w.pt.

python examples/plain_classifier.py FOLDER. docs/guides/harden.md continues from there.
"""

import sys
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

MEAN, STD = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def build(num_classes: int = 10) -> nn.Module:
    """Four convolutions; images are normalised by the transform, outside."""
    layers: list[nn.Module] = []
    channels = 3
    for width, stride in ((16, 2), (32, 2), (64, 2), (64, 1)):
        layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def pictures() -> tuple[Tensor, Tensor]:
    """The 1,797 digits of scikit-learn, scaled up, coloured at random, with some noise: uint8 [n, 3, 48, 48]."""
    pixels, labels = load_digits(return_X_y=True)
    x = F.interpolate(torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, size=48, mode="bicubic")
    x = x.clamp(0, 1)
    ink, paper = torch.rand(len(x), 3, 1, 1) * 0.4 + 0.6, torch.rand(len(x), 3, 1, 1) * 0.3
    x = x * ink + (1 - x) * paper
    x = (x + 0.03 * torch.randn_like(x)).clamp(0, 1)
    return (255 * x).round().byte(), torch.tensor(labels)


def main(folder: Path, epochs: int = 30) -> float:
    """Write the pictures and the weights; returns the accuracy on the test pictures."""
    torch.manual_seed(0)
    x, y = pictures()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1297], order[1297:]
    for part, rows in (("train", train), ("test", test)):
        for i in rows.tolist():
            path = folder / "digits48" / part / f"digit{int(y[i])}" / f"{i:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[i].permute(1, 2, 0).numpy()).save(path)
    x = (x / 255 - MEAN) / STD
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - epoch / epochs)
        for rows in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    torch.save(model.state_dict(), folder / "w.pt")
    with torch.no_grad():
        return float((model.eval()(x[test]).argmax(1) == y[test]).double().mean())


if __name__ == "__main__":
    print(f"clean accuracy {main(Path(sys.argv[1])):.1%}")
