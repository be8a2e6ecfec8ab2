"""Faster gradients by the image on a processor: the first convolution's, as one matrix product."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_CHANNELS = 4  # of an image; a processor's own kernel computes 16 at once, and most of them would be nobody's
MOST_NUMBERS = 2**21  # of the planes held at once: 8 MiB, what a cache holds


class ImageConvolution(torch.autograd.Function):
    """F.conv2d whose gradient by the image is a matrix product and a sum of shifted planes; none by the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, conv: nn.Conv2d) -> Tensor:
        ctx.conv, ctx.shape, ctx.dtype = conv, x.shape, x.dtype
        ctx.layout = torch.channels_last if x.stride(1) == 1 else torch.contiguous_format
        ctx.save_for_backward(weight)
        return F.conv2d(x, weight, bias, conv.stride, conv.padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,), (weight,), (n, channels, height, width) = gradients, ctx.saved_tensors, ctx.shape
        (top, left), (down, right), (outputs, _, rows, columns) = ctx.conv.padding, ctx.conv.stride, weight.shape
        h, w = gradient.shape[2:]
        kernel = weight.to(gradient.dtype).permute(2, 3, 1, 0).reshape(-1, outputs)
        image = torch.zeros(n, channels, height + 2 * top, width + 2 * left, dtype=ctx.dtype, device=gradient.device)
        count = max(1, MOST_NUMBERS // (len(kernel) * h * w))
        for part in (slice(begin, begin + count) for begin in range(0, n, count)):
            flat = gradient[part].permute(0, 2, 3, 1).reshape(-1, h * w, outputs)  # a view if channels-last
            planes = (kernel @ flat.transpose(1, 2)).view(-1, rows, columns, channels, h, w)  # one for each entry
            for i, j in product(range(rows), range(columns)):
                down_by, right_by = (slice(k, k + s * (m - 1) + 1, s) for k, s, m in ((i, down, h), (j, right, w)))
                image[part, :, down_by, right_by] += planes[:, i, j]
        image = image[:, :, top : top + height, left : left + width]
        return image.contiguous(memory_format=ctx.layout), None, None, None


@dataclass(eq=False)
class FirstLayer:
    """The `forward` of a convolution of images; an object, so that a copy of the layer has a copy of this one."""

    conv: nn.Conv2d

    def __call__(self, x: Tensor) -> Tensor:
        conv = self.conv
        wanted = [p for p in (conv.weight, conv.bias) if p is not None and p.requires_grad]
        if wanted or not x.requires_grad or x.ndim != 4 or x.device.type != "cpu":
            return type(conv).forward(conv, x)
        return ImageConvolution.apply(x, conv.weight, conv.bias, conv)  # type: ignore[return-value]


@contextmanager
def fast_first_layer(model: nn.Module) -> Iterator[None]:
    """Run convolutions of images with the faster gradient, equal up to float rounding (docs/studies/performance.md).

    Compiled models and users' own convolutions are left alone.
    """
    compiled = getattr(model, "_compiled_call_impl", None) is not None or hasattr(model, "_orig_mod")
    convs = [m for m in model.modules() if type(m) is nn.Conv2d and not compiled and "forward" not in vars(m)]
    convs = [m for m in convs if m.in_channels <= MOST_CHANNELS and m.groups == 1 and m.dilation == (1, 1)]
    convs = [m for m in convs if m.padding_mode == "zeros" and not isinstance(m.padding, str)]
    for conv in convs:
        conv.forward = FirstLayer(conv)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for conv in convs:
            del conv.forward
