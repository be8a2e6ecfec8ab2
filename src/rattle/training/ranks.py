"""What training does differently on several ranks: the wrapped model, a rank's share of a batch, common statistics."""

import inspect
import signal
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from rattle.data import Images
from rattle.errors import RattleError
from rattle.forward import PairedForward
from rattle.models import find_head
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed


def wrap_model(
    model: nn.Module,
    recipe: Recipe,
    example: Tensor | None = None,
    teachers: Mapping[str, nn.Module] | None = None,
    average: AveragedModel | None = None,
) -> tuple[PairedForward, nn.Module]:
    """The model as the step uses it, and the same inside the wrapper that averages gradients over ranks: on GPUs, where
    they travel while the backward pass goes on. On processors there is none: `exchange` sends them with all else.

    example: images to find the head by, see `find_head`; teachers: the objective's, by name; average: of the
    model's weights, where the objective learns from it.
    """
    needs = recipe.objective.needs
    head = find_head(model, recipe.head, example=example) if needs.features else None
    forward = PairedForward(model, needs, head, teachers, average)
    if recipe.compile:
        model.compile()
        forward.compile()
    if not distributed.active():
        return forward, forward
    if not overlaps(model):
        distributed.copy_from_main([*forward.parameters(), *forward.buffers()])
        return forward, forward
    known = inspect.signature(DistributedDataParallel).parameters  # torch 2.13 renames the option
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    settings: dict[str, Any] = {option: False}  # average_statistics does it
    # The readings exact and trace lay gradients out otherwise than the weights: DDP copies them and is right.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    return forward, DistributedDataParallel(forward, **settings)


def overlaps(model: nn.Module) -> bool:
    """Whether messages travel beside the computation. On a processor they take turns on its cores, and a message of
    gloo takes a millisecond or two however short it is (docs/guides/scale.md), so fewer are faster."""
    return next(model.parameters()).device.type != "cpu"


def refuse_other_images(parts: Sequence[Images | None]) -> None:
    """Refuse ranks that read different images: every machine may have files of its own, and one of them not whole."""
    found = distributed.gathered([part.digest() for part in parts if part is not None]) if distributed.active() else []
    others = [str(rank) for rank, each in enumerate(found) if each != found[0]]
    if others:
        words = (
            f"rank {', '.join(others)} of {len(found)} has other images than rank 0: give every machine the same files"
        )
        raise distributed.told(RattleError(words))


def sync_with_last(ddp_forward: nn.Module, last: bool) -> Any:
    """Under DDP, gradients travel between ranks once a minibatch: with its last micro-batch."""
    return nullcontext() if last or not isinstance(ddp_forward, DistributedDataParallel) else ddp_forward.no_sync()


def shard(index: Tensor) -> Tensor:
    """This rank's part of a minibatch; the parts of all ranks, joined in order, are the minibatch."""
    ranks = distributed.world_size()
    if len(index) % ranks:
        raise RattleError(f"a minibatch of {len(index)} images does not divide over {ranks} ranks: change --batch-size")
    return index.chunk(ranks)[distributed.rank()]


def exchange(
    terms: Mapping[str, Tensor], networks: Sequence[nn.Module], recipe: Recipe, reason: int
) -> tuple[dict[str, Tensor], int]:
    """What ranks tell each other at the end of a step, in one message: their losses, BatchNorm's running statistics (a
    checkpoint of one rank is then that of all), a reason to save, the largest of any rank (0: none), and the gradients
    where no wrapper averaged them.

    Returns the mean losses and the reason. On GPUs the reason is a message of its own between the hosts, or every step
    would wait for the device.
    """
    if not distributed.active():
        return dict(terms), reason
    local = networks if recipe.batch_norm == "local" else ()
    shared = [b for network in local for b in network.buffers() if b.is_floating_point()]
    if not overlaps(networks[0]):
        shared += [p.grad for network in networks for p in network.parameters() if p.grad is not None]
    values = {**terms, **{f"shared {i}": tensor for i, tensor in enumerate(shared)}}
    host = next(iter(terms.values())).device.type == "cpu"
    if host:  # a count for each number: the largest reason is the last with a count
        values["reasons"] = one_hot(torch.tensor(reason), signal.NSIG).to(next(iter(terms.values())))
    means = distributed.mean_of(values)
    for i, tensor in enumerate(shared):
        tensor.copy_(means[f"shared {i}"])
    reason = int(means["reasons"].nonzero().max()) if host else distributed.any_rank(reason)
    return {name: means[name].to(value.dtype) for name, value in terms.items()}, reason
