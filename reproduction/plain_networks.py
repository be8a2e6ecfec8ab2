"""Networks for reproduction/autoattack.py --networks that this library did not train: plain torch, nothing of rattle.

    python -m reproduction.plain_networks cifar10.npz resnet resnet_bn        # trains by FGSM from a random start
    python -m reproduction.autoattack CACHE --cifar10 cifar10.npz --networks reproduction/plain_networks.py:resnet ...

Weights are kept in the folder PLAIN_NETWORKS (environment; plain-networks when not set). `small_36px` is Wong and
Kolter's published network: put models_scaled_l2/cifar_small_36px.pth of github.com/locuslab/convex_adversarial there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

FOLDER = Path(os.environ.get("PLAIN_NETWORKS", "plain-networks"))
EPSILON, BATCH, IMAGES = 4 / 255, 64, 10_000


class Block(nn.Module):
    """A residual block; without normalisation its second convolution starts at zero."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: type[nn.Module] | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=norm is None)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=norm is None)
        self.bn1, self.bn2 = (norm(outputs) if norm else nn.Identity() for _ in range(2))
        if stride == 1 and inputs == outputs:
            self.short: nn.Module = nn.Identity()
        else:
            short = nn.Conv2d(inputs, outputs, 1, stride, bias=norm is None)
            self.short = nn.Sequential(short, norm(outputs)) if norm else short
        if norm is None:
            nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.short(x))


def build(norm: type[nn.Module] | None, classes: int = 10, width: int = 16, stride: int = 2) -> nn.Module:
    """Three residual blocks, the first at half resolution, or whole with stride 1; 78 thousand weights."""
    stem = [nn.Conv2d(3, width, 3, stride, 1), *([norm(width)] if norm else []), nn.ReLU()]
    sizes = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes)]
    return nn.Sequential(*stem, *(Block(*size, norm) for size in sizes), *head)


NETWORKS = {  # name: (network, epochs, highest learning rate)
    "resnet": (lambda: build(None), 6, 0.05),
    "resnet_whole": (lambda: build(None, stride=1), 6, 0.05),
    "resnet_bn": (lambda: build(nn.BatchNorm2d), 6, 0.2),
    "resnet100": (lambda: build(nn.BatchNorm2d, classes=100), 10, 0.2),
}


def trained(name: str) -> nn.Module:
    model = NETWORKS[name][0]()
    model.load_state_dict(torch.load(FOLDER / f"{name}.pt", weights_only=True))
    return model.eval()


def resnet() -> nn.Module:
    return trained("resnet")


def resnet_whole() -> nn.Module:
    return trained("resnet_whole")


def resnet_bn() -> nn.Module:
    return trained("resnet_bn")


def resnet100() -> nn.Module:
    return trained("resnet100")


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.new_tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / 0.225


def small_36px() -> nn.Module:
    """The first of the cascade's networks, 214 thousand weights, no BatchNorm."""
    body = [nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(2048, 100), nn.ReLU(), nn.Linear(100, 10))
    saved = torch.load(FOLDER / "cifar_small_36px.pth", map_location="cpu", weights_only=True)
    model.load_state_dict(saved["state_dict"][0])
    return nn.Sequential(Centred(), model).eval()


def train(name: str, x: Tensor, y: Tensor) -> nn.Module:
    """One cycle of the learning rate, images flipped by the batch, FGSM from a random start (Wong et al. 2020)."""
    torch.manual_seed(0)
    make, epochs, rate = NETWORKS[name]
    model = make()
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * (len(x) // BATCH))
    for epoch in range(epochs):
        loss = torch.zeros(())
        for index in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            images, labels = x[index].float() / 255, y[index]
            images = images.flip(3) if torch.rand(()) < 0.5 else images
            delta = torch.empty_like(images).uniform_(-EPSILON, EPSILON).requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model((images + delta).clamp(0, 1)), labels), delta)
            delta = (delta + 1.25 * EPSILON * slope.sign()).clamp(-EPSILON, EPSILON).detach()
            loss = F.cross_entropy(model((images + delta).clamp(0, 1)), labels)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            cycle.step()
        print(f"{name}, epoch {epoch + 1}/{epochs}: loss {loss.item():.3f}", flush=True)
    return model


def main() -> None:
    arrays = np.load(sys.argv[1])
    x = torch.from_numpy(arrays["x_train"][:IMAGES]).permute(0, 3, 1, 2).contiguous()
    y = torch.from_numpy(arrays["y_train"][:IMAGES]).long()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:]:
        torch.save(train(name, x, y).state_dict(), FOLDER / f"{name}.pt")


if __name__ == "__main__":
    main()
