"""Ranks, devices and collectives over torch.distributed; without a process group, everything is the one rank's own."""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rattle.errors import RattleError, first_line
from rattle.weights import Tensors

T = TypeVar("T")


def active() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if active() else 0


def choose_device(name: torch.device | str = "auto") -> torch.device:
    """The device of that name, RattleError if it is not there; `auto` is this rank's GPU, else mps, else the CPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            torch.zeros((), device=device).item()  # refused where nothing can be computed
        except (RuntimeError, AssertionError, NotImplementedError) as reason:  # a build without CUDA asserts
            raise RattleError(f"there is no device {str(name)!r} here: {first_line(reason).rstrip('.')}") from reason
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def restart_count() -> int:
    """How often torchrun has restarted the ranks of this machine because a process died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def world_size() -> int:
    return dist.get_world_size() if active() else 1


def is_main() -> bool:
    """Whether this process writes files and prints."""
    return rank() == 0


@contextmanager
def process_group() -> Iterator[None]:
    """Join the process group of a torchrun job, NCCL on GPUs and gloo on CPUs; no-op without torchrun."""
    if active() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(choose_device())
    # gloo for CPU tensors also on GPUs: the hosts agree on something without waiting for the device.
    # torchrun keeps one store through its restarts; the prefix hides the addresses that dead ranks left there.
    store, own, ranks = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(f"attempt {restart_count()}", store)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", store=store, rank=own, world_size=ranks)
    try:
        yield
    except BaseException as error:
        release_frames(error)
        raise
    finally:
        dist.destroy_process_group()


def release_frames(error: BaseException) -> None:
    """Clear the local variables that an error's traceback keeps alive: gloo can hang for ever when a model inside
    DistributedDataParallel is freed after the process group was destroyed."""
    reason = error
    while reason is not None:
        traceback.clear_frames(reason.__traceback__)
        reason = reason.__cause__ or reason.__context__


def mean_over_ranks(tensors: Tensors) -> Tensors:
    """The means over ranks of many tensors, in one collective call."""
    if not active() or not tensors:
        return dict(tensors)
    flat = sum_over_ranks(torch.cat([t.reshape(-1) for t in tensors.values()])) / world_size()
    means = {}
    for (name, t), part in zip(tensors.items(), flat.split([t.numel() for t in tensors.values()]), strict=True):
        means[name] = part.view(t.shape)
    return means


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum over ranks, element by element."""
    if active():
        values = values.clone()
        dist.all_reduce(values)
    return values


def max_over_ranks(values: Tensor) -> Tensor:
    """The largest over ranks, element by element."""
    if active():
        values = values.clone()
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def any_rank(flag: int) -> int:
    """The largest value of any rank, so that all ranks act on it together."""
    return int(max_over_ranks(torch.tensor(flag)))


def on_main(action: Callable[[], object]) -> None:
    """Run an action on the main rank while the others wait; a RattleError that it raises is raised on every rank."""
    with raise_on_all_ranks():
        if is_main():
            action()


def gather(value: T) -> list[T]:
    """The value of every rank, in their order."""
    found = [value] * world_size()
    if active():
        dist.all_gather_object(found, value)
    return found


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Run the body on each rank; an error that one rank raises in it is raised on all of them, with its message."""
    own = None
    try:
        yield
    except RattleError as reason:
        own = reason
    found = gather(None if own is None else (type(own), str(own)))
    if own is not None:
        raise told(own)
    for error in found:
        if error is not None:
            kind, message = error
            raise told(kind(message))


def told(mistake: RattleError) -> RattleError:
    """An error that every rank raises: the main rank alone prints it."""
    mistake.told = not is_main()
    return mistake


def barrier() -> None:
    if active():
        dist.barrier()
