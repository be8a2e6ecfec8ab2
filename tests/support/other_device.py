"""A device that is not there: tensors that say `meta`, hold their values on the CPU, and refuse to meet the CPU's.

On a GPU two tensors of different devices cannot be added, and which attack or evaluation does so only shows on a GPU.
Under `other_device()` it shows here: values are right, so that code which looks at them runs too, and a tensor of the
CPU among those of the device raises (a number alone does not, as on a GPU). `to_device` brings something there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map

DEVICE, CPU = torch.device("meta"), torch.device("cpu")
aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default)  # what may take a tensor from one device to another
# An index on the host is taken along to a GPU; torch allows it.
INDEXES = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default)


class There(Tensor):
    """A tensor of the device; `value` is what it holds."""

    value: Tensor

    @staticmethod
    def __new__(cls, value: Tensor) -> "There":
        settings = {"dtype": value.dtype, "requires_grad": value.requires_grad, "device": DEVICE}
        strides, offset = value.stride(), value.storage_offset()
        self = Tensor._make_wrapper_subclass(cls, value.shape, strides=strides, storage_offset=offset, **settings)
        self.value = value.detach()
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(function, args, kwargs or {})

    def new_tensor(self, data: Any, **settings: Any) -> Tensor:
        """torch makes it below what Python can see."""
        return There(self.value.new_tensor(data, **settings))

    def tolist(self) -> Any:
        return self.value.tolist()

    def __repr__(self) -> str:
        return f"There({self.value})"


def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the values; its result is there if an argument was, or if it was asked for there."""
    seen = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in seen if isinstance(x, There)]
    asked = kwargs.get("device")
    if there and function not in (*MOVES, *INDEXES):
        mixed = [tuple(x.shape) for x in seen if not isinstance(x, There) and x.ndim > 0]
        if mixed:
            raise RuntimeError(f"{function} on two devices: {mixed} of the CPU among {len(there)} of the other")
    plain = tree_map(lambda x: x.value if isinstance(x, There) else x, (args, kwargs))
    if asked is not None:
        plain[1]["device"] = CPU
    result = function(*plain[0], **plain[1])
    lands = torch.device(asked) == DEVICE if asked is not None else bool(there)
    if function is aten.copy_.default:
        lands = isinstance(args[0], There)
    if not lands:
        return result
    wrapped = tree_map(lambda x: There(x) if isinstance(x, Tensor) and not isinstance(x, There) else x, result)
    return return_and_correct_aliasing(function, args, kwargs, wrapped) if there else wrapped


class Operations(TorchDispatchMode):
    """What makes tensors from nothing: `zeros`, `arange`, `rand`."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(function, args, kwargs or {})


class Literals(TorchFunctionMode):
    """`torch.tensor([1, 2], device=...)`, which torch makes below what the operations see."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        settings = dict(kwargs or {})
        if function is torch.tensor and settings.get("device") == DEVICE:
            return There(torch.tensor(*args, **{**settings, "device": CPU}))
        return function(*args, **settings)


@contextmanager
def other_device() -> Iterator[None]:
    """While it is active, tensors may be made there too."""
    with Literals(), Operations():
        yield


def to_device(thing: Any) -> Any:
    """A tensor, or a module with its weights and buffers, there."""
    if isinstance(thing, Tensor):
        return There(thing)
    for module in thing.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(There(p.detach()), requires_grad=p.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, There(buffer))
    return thing
