"""Rows of live images: targets and restarts side by side, packed as images leave, in the model's fastest layout."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rattle.attacks.base import Attack, check_labels, finite, logits_of
from rattle.attacks.batchnorm import folded
from rattle.randomness import GOLDEN, ImageStreams, Randomness, mix, signed, streams

log = logging.getLogger("rattle")

CHANNELS_LAST: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # what each model was found to accept


def accepts_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Whether the model takes channels-last images; tried once, and said once when it does not (`.view` flattening)."""
    if x.ndim != 4:
        return False
    if model not in CHANNELS_LAST:
        with torch.no_grad():
            try:
                model(x[:2].contiguous(memory_format=torch.channels_last))
                CHANNELS_LAST[model] = True
            except RuntimeError:
                model(x[:2].contiguous())  # raises again where the layout is not to blame
                CHANNELS_LAST[model] = False
                log.warning("the model does not take channels-last images (it flattens by .view?); attacks run slower")
    return CHANNELS_LAST[model]


class FlatModel:
    """A model under attack, seen through flat images [n, d] in the memory layout it runs fastest in.

    Made inside `attacked(model)`. Flat rows make per-image reductions, packing and projections free of copies.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.shape = model, x.shape[1:]
        self.channels_last = accepts_channels_last(model, x)
        self.model = folded(model, self.images(self.flat(x[:2]))) or model

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
        return finite(logits_of(self.model, self.images(rows)))

    @torch.no_grad()
    def clean(self, rows: Tensor, y: Tensor) -> Tensor:
        """Logits of the unattacked images, labels checked."""
        logits = self.logits(rows)
        check_labels(logits, y)
        return logits


class ActiveRows(SimpleNamespace):
    """Per-row tensors of what is still being attacked; `keep` packs all of them."""

    def keep(self, rows: Tensor) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value[rows])


def branch(draws: ImageStreams, number: Tensor | int) -> ImageStreams:
    """Further streams, independent of the given ones and of every other number's: one per restart, target or part."""
    child = draws[torch.arange(len(draws), device=draws.key.device)]
    child.key, child.calls = mix(child.key ^ mix(torch.as_tensor(number, device=child.key.device) + signed(GOLDEN))), 0
    return child


def top_wrong_classes(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """The `count` most likely wrong classes, most likely first, [n, min(count, C - 1)]."""
    wrong = logits.scatter(1, y[:, None], float("-inf"))
    return wrong.topk(min(count, logits.shape[1] - 1), dim=1).indices


class Run(Protocol):
    """One run of an attack from one start on rows [r, d]: a point for each row and its height, inf where it broke."""

    def __call__(
        self, victim: FlatModel, rows: ActiveRows, draws: ImageStreams, *, restart: int
    ) -> tuple[Tensor, Tensor]: ...


def best_of_runs(
    run: Run,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: Randomness,
    *,
    targets: int = 0,
    restarts: int = 1,
    share: float = 1.0,
) -> Tensor:
    """The outer loop of APGD and FAB: restarts and targets on the images still unbroken; their highest points, else x.

    All targets of an image run side by side, one row each, so that an image leaves the moment one of them breaks it;
    images are grouped so that no more rows than a `share` of the images given are held at once.
    `rows` has image (its place in the group), x, y and target.
    """
    draws = streams(generator, x)
    victim = FlatModel(model, x)
    flat = victim.flat(x)
    logits = victim.clean(flat, y)
    aims = top_wrong_classes(logits, y, targets) if targets else y[:, None]
    height = torch.full(y.shape, -torch.inf, device=x.device, dtype=logits.dtype)
    points = flat.clone()
    count = aims.shape[1]
    most = len(x) if count == 1 or len(x) <= 64 else max(64, round(share * len(x)))
    for live in (logits.argmax(1) == y).nonzero().squeeze(1).split(max(1, most // count)):
        for restart in range(restarts if len(live) else 0):
            image = live.repeat_interleave(count)
            number = torch.arange(count, device=x.device).repeat(len(live)) + restart * count
            place = torch.arange(len(live), device=x.device).repeat_interleave(count)
            rows = ActiveRows(image=place, x=flat[image], y=y[image], target=aims[live].flatten())
            found, heights = run(victim, rows, branch(draws[image], number), restart=restart)
            top, which = heights.view(-1, count).max(1)
            higher = top > height[live]
            chosen = torch.arange(len(live), device=x.device) * count + which
            points[live[higher]] = found[chosen[higher]]
            height[live] = torch.maximum(height[live], top)
            live = live[height[live] < torch.inf]
            if len(live) == 0:
                break
    return victim.images(points)


def run_ensemble(
    components: Mapping[str, Attack],
    x: Tensor,
    y: Tensor,
    draws: ImageStreams,
    run: Callable[[Attack, Tensor, Tensor, ImageStreams], tuple[Tensor, Tensor]],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Every component on the images that those before it left robust; all images are robust at the start.

    `run(component, x, y, draws)` returns points and which images are still robust, [n] bool.
    Returns the points, and for each component which images are robust after it.
    """
    x_adv, after = x.clone(), {}
    robust = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for number, (name, component) in enumerate(components.items()):
        live = robust.nonzero().squeeze(1)
        if len(live):
            points, left = run(component, x[live], y[live], branch(draws[live], number))
            x_adv[live], robust[live] = points.to(x_adv), left
        after[name] = robust.clone()
    return x_adv, after
