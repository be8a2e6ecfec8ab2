"""Rows of images under attack: a model of flat images; targets side by side, packed as images are broken."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from rattle.attacks.base import Attack, attack_mode
from rattle.inputs import accepts_channels_last, clean_logits, finite_logits, logits_of
from rattle.losses import of_others
from rattle.randomized import Expected
from rattle.randomness import GOLDEN, ImageStreams, Randomness, mix, signed, streams

FEWEST_ROWS = 64  # of images up to CIFAR's size in a pass: fewer do not fill it
SMALL_IMAGE = 3 * 32 * 32


class FlatModel:
    """A model in `attack_mode`, called with flat images [n, d]: sums, packing and projections need no copies."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        # Rows are packed as images are broken, and torch.compile would compile again for every number of them.
        self.model, self.shape = getattr(model, "_orig_mod", model), x.shape[1:]
        self.channels_last = accepts_channels_last(self.model, x)
        self.pixels = self.images(torch.arange(x[0].numel(), device=x.device))[0]  # index of each pixel in a row

    def flat(self, x: Tensor) -> Tensor:
        """Images [n, ...] as rows [n, d]."""
        return (x.permute(0, 2, 3, 1) if self.channels_last else x).reshape(len(x), -1)

    def images(self, rows: Tensor) -> Tensor:
        """Rows [n, d] as images [n, ...]: a view."""
        if not self.channels_last:
            return rows.view(-1, *self.shape)
        channels, height, width = self.shape
        return rows.view(-1, height, width, channels).permute(0, 3, 1, 2)

    def logits(self, rows: Tensor) -> Tensor:
        return finite_logits(logits_of(self.model, self.images(rows)))


@dataclass
class TargetRows:
    """Rows under attack, one for each target of each image. Attacks add variables, one entry a row, of their own."""

    row: Tensor  # index of the row's result, [r]
    image: Tensor  # rows with the same number belong to the same image, [r]
    x: Tensor  # clean images, [r, d]
    y: Tensor  # labels, [r]
    target: Tensor  # class aimed at, [r]; the label itself in untargeted attacks
    to_the_end: bool = field(default=False, kw_only=True)  # of a random model: wrong more often than not is not enough

    def select(self, rows: Tensor) -> None:
        """Keep only these rows (a mask or indices) of every variable and of the random streams."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor | ImageStreams):
                setattr(self, name, value[rows])


class RunResult:
    """The best point of each row and its score: the higher the worse for the model, inf where it is misclassified."""

    def __init__(self, x: Tensor) -> None:
        self.x_adv, self.score = x.clone(), x.new_full((len(x),), -torch.inf)

    def pack_broken(self, rows: TargetRows, points: Tensor, broken: Tensor) -> None:
        """Record the points of broken rows, then drop all rows of their images: one broken target is enough."""
        if bool(broken.any()) and not rows.to_the_end:
            self.x_adv[rows.row[broken]], self.score[rows.row[broken]] = points[broken], torch.inf
            rows.select(~torch.isin(rows.image, rows.image[broken]))

    def record(self, rows: TargetRows, points: Tensor, score: Tensor) -> "RunResult":
        """Record the points and scores of the rows that were not broken; returns the result, now whole."""
        self.x_adv[rows.row], self.score[rows.row] = points, score.to(self.score)
        return self

    def keep_better(self, images: Tensor, found: "RunResult") -> None:
        """Replace the points of these images where the best of an image's rows in `found` has a higher score."""
        score, which = found.score.view(len(images), -1).max(1)
        better = score > self.score[images]
        points = found.x_adv.view(len(images), -1, self.x_adv.shape[1])
        self.x_adv[images[better]] = points[better, which[better]]
        self.score[images] = torch.maximum(self.score[images], score)


class StartedAttack(Attack, Protocol):
    """An attack made of runs, each from a start of its own: APGD, FAB, Square."""

    @property
    def restarts(self) -> int: ...
    def run(self, model: FlatModel, rows: TargetRows, draws: ImageStreams, restart: int) -> RunResult: ...


def spawn(draws: ImageStreams, number: Tensor | int) -> ImageStreams:
    """New streams, independent of `draws` and of those of any other number: one per restart, target or component."""
    child = draws[torch.arange(len(draws), device=draws.key.device)]
    child.key, child.calls = mix(child.key ^ mix(torch.as_tensor(number, device=child.key.device) + signed(GOLDEN))), 0
    return child


def likeliest(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """The wrong classes of largest logits, the largest first, [n, at most count]."""
    return of_others(logits, y).topk(min(count, logits.shape[1] - 1), dim=1).indices


def best_of_runs(
    attack: StartedAttack,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    draw: Randomness,
    targets: int = 0,
    share: float = 1.0,
) -> Tensor:
    """The point of highest score that any restart, or any of the likeliest `targets`, found for each image.

    Misclassified images are returned as they are. All targets of an image run side by side, so that it leaves as soon
    as one of them breaks it. Images are attacked in groups of at most `share` rows per image given, for memory.
    """
    if attack.threat.epsilon == 0:
        return x.clone()
    draws = streams(draw, len(x), x.device)
    with attack_mode(model):
        flat_model = FlatModel(model, x)
        flat = flat_model.flat(x)
        logits = clean_logits(model, flat_model.images(flat), y)
        classes = likeliest(logits, y, targets) if targets else y[:, None]
        count = classes.shape[1]
        most_rows = len(x) if count == 1 else max(1, round(share * len(x)))
        if flat.shape[1] <= SMALL_IMAGE:
            most_rows = max(most_rows, FEWEST_ROWS)
        best = RunResult(flat)
        random = isinstance(model, Expected)
        correct = ((logits.argmax(1) == y) | random).nonzero().squeeze(1)
        for group in correct.split(max(1, most_rows // count)):
            for restart in range(attack.restarts):
                left = group[best.score[group] < torch.inf]
                if len(left) == 0:
                    break
                number = torch.arange(len(left) * count, device=x.device)
                image = left.repeat_interleave(count)
                rows = TargetRows(number, image, flat[image], y[image], classes[left].flatten(), to_the_end=random)
                own_draws = spawn(draws[image], number % count + restart * count)
                best.keep_better(left, attack.run(flat_model, rows, own_draws, restart))
        return flat_model.images(best.x_adv)
