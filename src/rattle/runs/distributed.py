"""Ranks, devices and collectives over torch.distributed; without a process group, everything is the one rank's own."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rattle.errors import RattleError, first_line
from rattle.runs.meeting import meet
from rattle.runs.progress import Interrupted

T = TypeVar("T")
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")  # kinds of them, besides auto
FEW = 2**19  # numbers that one rank is sent at once
# References to process groups, held to the end of the process. Dropping the last reference waits for the group's
# threads; done by a DDP wrapper in an exception's frames, it would wait while holding the GIL that they need to end.
GROUPS: list[object] = []


def active() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if active() else 0


def check_device(name: str) -> None:
    """Refuse what is the name of no device; whether it is there is another question."""
    if name.partition(":")[0] not in DEVICES:
        raise RattleError(f"there is no device {name!r} here: it is {', '.join(DEVICES)}, or with a number as cuda:1")


def choose_device(name: torch.device | str = "auto") -> torch.device:
    """The device of that name, RattleError if it is not there; `auto` is this rank's GPU, else mps, else the CPU."""
    check_device(str(name))
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(1, device=device)
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
    store, me, count = next(dist.rendezvous("env://"))
    mine = dist.PrefixStore(meet(store, me, count), store)
    backends = "cpu:gloo,cuda:nccl" if gpu else "gloo"  # gloo reduces CPU tensors without waiting for the GPU
    dist.init_process_group(backends, store=mine, rank=me, world_size=count)
    GROUPS.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def mean_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The means over ranks of many tensors, in one collective call."""
    if not active() or not tensors:
        return dict(tensors)
    flat = total(torch.cat([t.reshape(-1) for t in tensors.values()])) / world_size()
    parts = flat.split([t.numel() for t in tensors.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(tensors.items(), parts, strict=True)}


def total(values: Tensor) -> Tensor:
    """The sum over ranks.

    Few numbers on processors go from every rank to every other: gloo's all_reduce takes two to three times as long.
    """
    if not active():
        return values
    if values.device.type == "cpu" and world_size() * values.numel() <= FEW:
        found = values.new_empty(world_size(), *values.shape)
        dist.all_to_all_single(found, values.expand_as(found).contiguous())
        return found.sum(0, dtype=values.dtype)
    values = values.clone()
    dist.all_reduce(values)
    return values


def highest(values: Tensor) -> Tensor:
    """The largest over ranks, element by element."""
    if active():
        values = values.clone()
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def copy_from_main(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of the main rank."""
    for tensor in tensors:
        values = tensor.detach().contiguous()
        dist.broadcast(values, src=0)
        tensor.detach().copy_(values)


def any_rank(flag: int) -> int:
    """The largest value of any rank, so that all ranks act on it together."""
    if not active():
        return flag
    value = torch.tensor(flag)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def on_main(action: Callable[[], object]) -> None:
    """Run an action on the main rank while the others wait; a RattleError that it raises is raised on every rank."""
    if not active():
        action()
        return
    refusal: list[str | None] = [None]
    own: RattleError | None = None
    if is_main():
        try:
            action()
        except RattleError as mistake:
            own, refusal = mistake, [str(mistake)]
    dist.broadcast_object_list(refusal, src=0)
    if refusal[0] is not None:
        raise told(own or RattleError(refusal[0]))


def gathered(value: T) -> list[T]:
    """The value of every rank, in their order."""
    found = [value] * world_size()
    if active():
        dist.all_gather_object(found, value)
    return found


@contextmanager
def agreed() -> Iterator[None]:
    """What each rank does alone before they meet: where one refuses or is interrupted, all stop, in its words.

    The main rank alone prints them.
    """
    own: Exception | None = None
    try:
        yield
    except (RattleError, Interrupted) as reason:
        own = reason
    found = gathered(None if own is None else (type(own), str(own)))
    if own is not None:
        raise told(own)
    for kind, words in filter(None, found):
        raise told(kind(words))


def told(mistake: Exception) -> Exception:
    """The mistake, which every rank raises and the main rank prints."""
    if isinstance(mistake, RattleError):
        mistake.told = not is_main()
    return mistake


def barrier() -> None:
    if active():
        dist.barrier()
