"""What PGD could save by ending early: images that walk in an exact cycle, and images that are broken before the end.

    python -m reproduction.pgd_cycles [--n 300] [--run RUN --cifar10 cifar10.npz]

An image whose point equals an earlier one bit for bit repeats itself (arXiv 2503.19347): its last point is known. One
that is broken cannot leave: a later point may be classified correctly again, and PGD returns the last. Written to
reproduction/results/pgd-cycles.json. RUN is one trained on the images of cifar10.npz.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rattle import load
from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.data.registry import Data
from rattle.inputs import input_gradient, is_correct, logits_of, to_float
from rattle.randomness import ImageStreams
from rattle.runs.io import write_atomically
from rattle.runs.load import open_checkpoint
from rattle.threat import Threat

RESULTS = Path(__file__).parent / "results" / "pgd-cycles.json"
NETWORKS = ("zoo:digits-linf-cnn-at", "zoo:digits-linf-cnn-trades-2nd", "zoo:digits-linf-cnn-plain")
LONGEST = 4  # length of a cycle that is looked for


def walk(model: nn.Module, attack: PGD, x: Tensor, y: Tensor) -> dict[str, float]:
    """How many images cycle, the share of all (image, step) pairs after a cycle closed, and when images are broken."""
    points = [attack.start_point(x, ImageStreams(0, torch.arange(len(x))))]
    closed = torch.full((len(x),), attack.steps)
    broken = []
    with attack_mode(model):
        for step in range(1, attack.steps + 1):
            x_adv = points[-1].detach().requires_grad_()
            logits = logits_of(model, x_adv)
            broken.append(logits.argmax(1) != y)
            gradient = input_gradient(attack.sample_losses(logits, y).sum(), x_adv)
            points.append(attack.threat.project(attack.threat.ascend(x_adv.detach(), gradient, attack.step_size), x))
            for earlier in points[-LONGEST - 1 : -1]:
                repeats = (points[-1] == earlier).flatten(1).all(1) & (closed == attack.steps)
                closed[repeats] = step
    last = ~is_correct(model, points[-1], y)
    return {
        "n": len(x),
        "cyclic": int((closed < attack.steps).sum()),
        "steps_saved": 1 - float(closed.float().mean()) / attack.steps,
        "broken": int(last.sum()),
        "broken_earlier_only": int((torch.stack(broken).any(0) & ~last).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=300, help="test images")
    parser.add_argument("--run", help="a run or checkpoint on CIFAR-10 images")
    parser.add_argument("--cifar10", help="cifar10.npz")
    given = parser.parse_args()
    digits = Data(name="digits").load().test
    cases = [(name, digits.x[: given.n], digits.y[: given.n]) for name in NETWORKS]
    if given.run:
        arrays = np.load(given.cifar10)
        x = torch.from_numpy(arrays["x_test"][: given.n]).permute(0, 3, 1, 2)
        cases.append((given.run, x, torch.from_numpy(arrays["y_test"][: given.n]).long()))
    found = []
    for name, images, y in cases:
        model, recipe, x = load(name).eval(), open_checkpoint(name).recipe, to_float(images)
        correct = is_correct(model, x, y)
        epsilon = recipe.attack.threat.epsilon
        for steps in (20, 40):
            attack = PGD(threat=Threat(epsilon=epsilon), step_size=epsilon / 4, steps=steps)
            row = walk(model, attack, x[correct], y[correct])
            label = name if name.startswith("zoo:") else f"{recipe.model}, {recipe.method}"
            found.append({"network": label, "epsilon": epsilon, "steps": steps, **row})
            print(found[-1])
    write_atomically(RESULTS, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
