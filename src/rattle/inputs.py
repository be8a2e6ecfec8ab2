"""The one door for images, labels and models: what attacks, losses, `fit` and `evaluate` check before they begin."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from rattle.errors import RattleError, first_line, is_out_of_memory
from rattle.losses import logits_in, refuse_one_logit

log = logging.getLogger("rattle")
AnyArray = Tensor | np.ndarray
Examples = tuple[Tensor, Tensor]  # images and their labels
Given = AnyArray | Dataset | DataLoader  # images: with their labels, if they are no array

CHECKED: ContextVar[bool] = ContextVar("images_checked", default=False)
ONE_AT_A_TIME: WeakSet[nn.Module] = WeakSet()  # models that were found to take single images only
CHANNELS_LAST: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # what each model was found to accept

NARROW = 16  # input channels: fewer do not fill a register of AVX-512
SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


@contextmanager
def images_checked() -> Iterator[None]:
    """In the body only values on the CPU are checked: the host would wait for a GPU."""
    before = CHECKED.set(True)
    try:
        yield
    finally:
        CHECKED.reset(before)


def skip_values(values: Tensor) -> bool:
    """Whether reading the values would make the host wait, see `images_checked`."""
    return CHECKED.get() and values.device.type != "cpu"


def check_model(model: object) -> nn.Module:
    """The model; refuses what is no torch module."""
    if not isinstance(model, nn.Module):
        raise RattleError(f"the model must be a torch.nn.Module, got {type(model).__name__}; rattle.load opens a run")
    return model


def check_batch(x: Tensor, y: Tensor, *, soft: bool = False, uint8: bool = False, box: bool = True) -> Examples:
    """The images [n, ...] and int64 labels [n]; refuses what is neither.

    soft: rows of probabilities [n, C] are labels too, and stay as they are; uint8: images [n, C, H, W] of bytes are
    taken too; box: False takes floats outside [0, 1].
    """
    for name, value in (("images", x), ("labels", y)):
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise RattleError(f"the {name} must be torch tensors, got {kind}; convert with torch.as_tensor")
        if (value.is_meta and not CHECKED.get()) or value.layout != torch.strided or value.is_quantized:
            raise RattleError(f"the {name} must be a dense tensor of numbers, got {value.layout} on {value.device}")
    probabilities = soft and y.ndim == 2 and y.is_floating_point()
    if x.ndim < 2 or (y.ndim != 1 and not probabilities):
        raise RattleError(f"images and labels need shapes [n, ...] and [n], got {list(x.shape)} and {list(y.shape)}")
    if len(x) != len(y):
        raise RattleError(f"{len(x)} images but {len(y)} labels")
    if len(x) == 0:
        raise RattleError("there are no images: the batch is empty")
    if not probabilities:
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise RattleError(f"labels must be whole numbers, got {y.dtype}")
        y = y.long()
    if uint8 and x.dtype == torch.uint8:
        if x.ndim != 4:
            raise RattleError(f"uint8 images must have shape [n, C, H, W], got {list(x.shape)}")
        return x, y
    if not x.is_floating_point():
        raise RattleError(f"images must be floating point in [0, 1], got {x.dtype}; divide uint8 images by 255")
    x = x.to(torch.promote_types(x.dtype, torch.float32))  # a step of an attack is too small for half precision
    if box and not skip_values(x):
        low, high = (float(value) for value in torch.aminmax(x))
        if not (low >= 0 and high <= 1):  # also true for NaN
            raise RattleError(f"images must lie in [0, 1], got [{low:.4g}, {high:.4g}]; normalise inside the model")
    with torch.inference_mode(False):  # autograd takes no tensors made in inference mode, but their copies
        return (x.clone() if x.is_inference() else x), (y.clone() if y.is_inference() else y)


def check_labels(logits: Tensor, y: Tensor) -> None:
    """Refuse labels that the model has no logit for, and soft ones of another number of classes."""
    classes = logits.shape[1]
    if y.ndim == 2:
        if y.shape != logits.shape:
            raise RattleError(f"soft labels need a probability for each of the {classes} logits, got {y.shape[1]}")
        return
    if skip_values(y) or classes == 1:  # one logit has its own sentence
        return
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise RattleError(f"labels run from {low} to {high}, but the model has {classes} outputs (0 to {classes - 1})")


class NotTaken(RattleError, RuntimeError):
    """The model raised on the images; a RuntimeError too, for callers that try several layouts."""


def not_taken(x: Tensor, reason: Exception) -> NotTaken:
    """Why a model raised on these images."""
    return NotTaken(f"the model does not take images of shape {list(x.shape[1:])}: {first_line(reason).rstrip('.')}")


def weights_type(model: nn.Module, default: torch.dtype) -> torch.dtype:
    """The type of a model's weights, in which it takes images; `default` if it has none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), default)


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """The model's logits [n, C], in the images' type and float32 at least; NotTaken if it raises on these images."""
    if model in ONE_AT_A_TIME:
        return torch.cat([call(model, image) for image in x.split(1)])
    try:
        return call(model, x)
    except NotTaken:
        if len(x) < 2:
            raise
    call(model, x[:1])  # raises again if the number of images was not the reason
    ONE_AT_A_TIME.add(model)
    log.warning("the model takes one image at a time, so attacks run slower: export it with a batch of any size")
    return logits_of(model, x)


def call(model: nn.Module, x: Tensor) -> Tensor:
    """The logits of one forward pass; NotTaken if the model raises, or returns another number of rows.

    A model of half or double precision that raises on the images gets them in the type of its weights.
    """
    try:
        logits = logits_in(model(x))
    except RattleError:
        raise
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as reason:
        if is_out_of_memory(reason):
            raise
        own = weights_type(model, x.dtype)
        if own == x.dtype:
            raise not_taken(x, reason) from reason
        logits = call(model, x.to(own))
    if len(logits) != len(x):
        raise NotTaken(f"the model returned {len(logits)} rows of logits for {len(x)} images")
    return logits.to(torch.promote_types(x.dtype, torch.float32))


class NotFinite(RattleError):
    """The model returned logits that are NaN or infinite."""


def finite_logits(logits: Tensor) -> Tensor:
    """The logits; NotFinite if one is NaN or infinite: neither has an order or a gradient that an attack could use."""
    if not bool(logits.isfinite().all()):
        kind = "NaN" if bool(logits.isnan().any()) else "infinite"
        raise NotFinite(
            f"the model returned {kind} logits, which do not show an attack whether an image is misclassified: scale "
            "down outputs that overflow, and mask classes by a finite number such as -1e4"
        )
    return logits


class NoGradient(RattleError):
    """The model's output does not depend on its input in a way that autograd sees."""


def input_gradient(loss: Tensor, x: Tensor, *, keep_graph: bool = False) -> Tensor:
    """d loss / d x, zero where x has no part in the loss; NoGradient if autograd recorded nothing."""
    if not loss.requires_grad:
        raise NoGradient("the model's output has no gradient: only square and rays can attack it")
    return torch.autograd.grad(loss, x, retain_graph=keep_graph, allow_unused=True, materialize_grads=True)[0]


@torch.no_grad()
def clean_logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The logits in one forward pass without gradients; refuses NaN and labels that the model has no logit for."""
    logits = finite_logits(logits_of(model, x))
    refuse_one_logit(logits)
    check_labels(logits, y)
    return logits


def is_correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images the model classifies correctly in one forward pass, [n] bool."""
    return clean_logits(model, x, y).argmax(1) == y


def trains_channels_last(model: nn.Module) -> bool:
    """Whether torch can differentiate by the model's weights at channels-last images.

    The weight gradient of a strided 1x1 convolution of fewer than 16 channels corrupts memory (decision 31).
    """
    for layer in model.modules():
        if not isinstance(layer, nn.Conv2d):
            continue
        if layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels // layer.groups < NARROW:
            return False
    return True


@torch.no_grad()
def accepts_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Whether the model runs on channels-last images like x; tried once per model, with one warning if it does not."""
    if x.ndim != 4 or not trains_channels_last(model):
        return False
    if model not in CHANNELS_LAST:
        try:
            logits_of(model, x[:2].clone(memory_format=torch.channels_last))
            CHANNELS_LAST[model] = True
        except RuntimeError:
            # raises again if the layout was not the reason
            logits_of(model, x[:2].clone(memory_format=torch.contiguous_format))
            CHANNELS_LAST[model] = False
            log.warning("the model does not take channels-last images (it flattens by .view?); attacks run slower")
    return CHANNELS_LAST[model]


def to_float(x: Tensor, layout: torch.memory_format = torch.channels_last) -> Tensor:
    """Images [n, C, H, W], uint8 or float in [0, 1], to [0, 1] in torch's default type; layout: of the new tensor."""
    found = torch.empty(x.shape, dtype=torch.get_default_dtype(), device=x.device, memory_format=layout).copy_(x)
    return found if x.is_floating_point() else found.div_(255)


def as_float(x: Tensor, *, channels_last: bool = True) -> Tensor:
    """Images in [0, 1]: uint8 ones divided by 255, others as they are.

    channels_last: False gives the strides of a new tensor [n, C, H, W], for models that flatten by `.view`.
    """
    if channels_last:
        return x if x.is_floating_point() else to_float(x)
    layout = torch.contiguous_format  # by a copy: .contiguous() keeps the strides that a single channel may have
    return x.clone(memory_format=layout) if x.is_floating_point() else to_float(x, layout)


def takes_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Whether a model in evaluation mode takes images like x channels last; RattleError if it does not take them."""
    few = as_float(x[:2], channels_last=False)
    with torch.no_grad():
        logits_of(model, few)  # the layout is tried once for each model, images like these not
    return accepts_channels_last(model, few)


def floats_for(model: nn.Module, x: Tensor) -> Tensor:
    """Images in [0, 1] for a model in evaluation mode: channels last, which is faster, where it takes them so."""
    return as_float(x, channels_last=takes_channels_last(model, x))


def as_tensors(model: nn.Module, x: Given, y: AnyArray | None) -> Examples:
    """Images, uint8 or floating point in [0, 1], and int64 labels; raises RattleError if they are not.

    Floats of numpy arrays take the model's dtype, because numpy's default is float64. Arrays may be [n, H, W, C].
    """
    check_model(model)
    if isinstance(x, Dataset | DataLoader):
        if y is not None:
            raise RattleError(
                "a Dataset or DataLoader has its own labels: give None for y (or leave it out: attacks=...)"
            )
        x, y = collect(x)
    if y is None:
        raise RattleError("images without labels cannot be evaluated: give them as y")
    dtype = weights_type(model, torch.get_default_dtype())
    return check_batch(channels_first(as_tensor(x, dtype)), as_tensor(y, dtype), uint8=True)


def as_tensor(value: Any, dtype: torch.dtype) -> Tensor:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "fiub":
        raise RattleError(f"images and labels must be arrays of numbers, got {value.dtype}")
    found = torch.tensor(value)  # a copy, so that read-only arrays do no harm
    return found.to(dtype) if found.is_floating_point() else found


def channels_first(x: Tensor) -> Tensor:
    """[n, H, W, C] as [n, C, H, W], where only the last axis can be channels (1 or 3 of them)."""
    if isinstance(x, Tensor) and x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return x.permute(0, 3, 1, 2).contiguous()
    return x


def collect(data: Dataset | DataLoader, n: int | None = None) -> Examples:
    """The first n images and labels of a Dataset or DataLoader, in its own order; all when n is None."""
    if isinstance(data, DataLoader) and isinstance(data.sampler, SHUFFLING):
        raise RattleError("the DataLoader shuffles, but images are known by their place: use shuffle=False")
    loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=256, collate_fn=stack_examples)
    try:
        batches = len(loader)  # one that never ends gives no more than it says
    except TypeError as reason:
        if n is None:
            sentence = "the Dataset has no length and may never end: give it a __len__, or give tensors"
            raise RattleError(sentence) from reason
        batches = None
    images = []
    labels = []
    try:
        for batch in islice(loader, batches):
            if not isinstance(batch, list | tuple) or len(batch) != 2:
                raise TypeError("a batch is no pair of images and labels")
            images.append(torch.as_tensor(batch[0]))
            labels.append(torch.as_tensor(batch[1]))
            if n is not None and sum(map(len, labels)) >= n:
                break
        return torch.cat(images)[:n], torch.cat(labels)[:n]
    except (TypeError, ValueError, RuntimeError, AttributeError) as reason:
        raise RattleError(
            "a Dataset or DataLoader must give batches of images of one shape and of labels that are whole numbers "
            f"({first_line(reason)})"
        ) from reason


def stack_examples(examples: list[Any]) -> Examples:
    """(image, label) pairs as one batch; an image may be a tensor, an array or a PIL picture."""
    images, labels = zip(*examples, strict=True)
    tensors = [image if isinstance(image, Tensor) else torch.as_tensor(np.array(image)) for image in images]
    return torch.stack(tensors), torch.as_tensor(labels)
