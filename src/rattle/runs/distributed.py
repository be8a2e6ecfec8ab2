"""Ranks: who am I, how many are we, and what is our mean. No-ops in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from rattle.errors import RattleError

# Groups once joined, kept to the end of the process. Whoever drops a group last waits for its threads; were that a DDP
# wrapper, in the frames of an exception, it would wait holding the lock that those threads need to end.
GROUPS: list[object] = []


def active() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if active() else 0


def local_rank() -> int:
    """The rank within this machine, as torchrun tells it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def choose_device(name: str = "auto") -> torch.device:
    """The device of that name; `auto` takes what there is, and each rank its own GPU."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def restart_count() -> int:
    """How often torchrun has started these processes again because one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def world_size() -> int:
    return dist.get_world_size() if active() else 1


def is_main() -> bool:
    """Is this the process that writes?"""
    return rank() == 0


@contextmanager
def process_group() -> Iterator[None]:
    """Inside, the processes that torchrun started know each other: NCCL on GPUs, gloo on CPUs."""
    if active() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(local_rank())
    # After a restart the store still holds the addresses of the dead: each attempt has its own part of it.
    store, me, count = next(dist.rendezvous("env://"))
    mine = dist.PrefixStore(f"attempt{restart_count()}", store)
    backends = "cpu:gloo,cuda:nccl" if gpu else "gloo"  # with both, flags travel without waiting for a GPU
    dist.init_process_group(backends, store=mine, rank=me, world_size=count)
    GROUPS.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def mean(values: Tensor) -> Tensor:
    """The average over ranks; the tensor itself in one process."""
    if not active():
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total / world_size()


def mean_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averages of many tensors, sent as one."""
    if not active() or not tensors:
        return dict(tensors)
    flat = mean(torch.cat([t.reshape(-1) for t in tensors.values()]))
    parts = flat.split([t.numel() for t in tensors.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(tensors.items(), parts, strict=True)}


def total(values: Tensor) -> Tensor:
    """The sum over ranks."""
    if active():
        values = values.clone()
        dist.all_reduce(values)
    return values


def any_rank(flag: int) -> int:
    """The largest flag of any rank, so that all of them act on it together."""
    if not active():
        return flag
    value = torch.tensor(flag)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def on_main(action: Callable[[], object]) -> None:
    """Let the main rank do it; all wait for it, and what it refuses every rank refuses."""
    if not active():
        action()
        return
    refusal: list[str | None] = [None]
    if is_main():
        try:
            action()
        except RattleError as mistake:
            refusal = [str(mistake)]
    dist.broadcast_object_list(refusal, src=0)
    if refusal[0] is not None:
        raise RattleError(refusal[0])


def barrier() -> None:
    if active():
        dist.barrier()
