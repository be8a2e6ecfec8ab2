"""What training does differently on several ranks: the wrapped model, a rank's share of a batch, common statistics."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rattle.errors import RattleError
from rattle.forward import PairedForward
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.training.state import TrainState
from rattle.weights import Tensors


def wrap_model(state: TrainState) -> tuple[PairedForward, nn.Module]:
    """The model as the step uses it, and the same inside DDP, which averages gradients over ranks."""
    needs = state.recipe.objective.needs
    if state.recipe.compile:
        state.model.compile()
        if needs.along_u is not None:  # dynamo traces no torch.func, and breaks off where weights are replaced
            needs = replace(needs, along_u=torch.compiler.set_stance("force_eager")(needs.along_u))
    forward = PairedForward(state.model, needs, state.head, state.teachers, state.average)
    if state.recipe.compile and needs.along_u is None:
        forward.compile()
    if not distributed.active():
        return forward, forward
    # The modes exact and trace lay gradients out otherwise than the weights: DDP copies them and is right.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    ddp_forward = DistributedDataParallel(forward)
    ddp_forward.broadcast_buffers = False  # `average_over_ranks` takes the mean of all ranks' statistics
    return forward, ddp_forward


def refuse_other_images(state: TrainState) -> None:
    """Refuse ranks that read different images: every machine may have files of its own, and one of them not whole."""
    if not distributed.active():
        return
    parts = (state.data.train, state.data.val, state.extra)
    found = distributed.gather([part.digest() for part in parts if part is not None])
    others = [str(rank) for rank, each in enumerate(found) if each != found[0]]
    if others:
        which = f"rank {', '.join(others)} of {len(found)}"
        raise distributed.told(RattleError(f"{which} has other images than rank 0: give every machine the same files"))


def sync_with_last(ddp_forward: nn.Module, last: bool) -> Any:
    """Under DDP, gradients travel between ranks once a minibatch: with its last micro-batch."""
    return nullcontext() if last or not isinstance(ddp_forward, DistributedDataParallel) else ddp_forward.no_sync()


def shard(index: Tensor) -> Tensor:
    """This rank's part of a minibatch; the parts of all ranks, joined in order, are the minibatch."""
    ranks = distributed.world_size()
    if len(index) % ranks:
        raise RattleError(f"a minibatch of {len(index)} images does not divide over {ranks} ranks: change --batch-size")
    return index.chunk(ranks)[distributed.rank()]


def average_over_ranks(terms: Tensors, networks: Sequence[nn.Module], recipe: Recipe) -> Tensors:
    """The mean losses of a step; BatchNorm's local running statistics become their means over ranks too, so that the
    checkpoint of one rank is that of all."""
    if not distributed.active():
        return dict(terms)
    statistics = {}
    if recipe.batch_norm == "local":
        for i, network in enumerate(networks):
            for name, value in network.named_buffers():
                if value.is_floating_point():
                    statistics[f"{i} {name}"] = value
    means = distributed.mean_over_ranks({**terms, **statistics})
    for name, value in statistics.items():
        value.copy_(means[name])
    return {name: means[name].to(value.dtype) for name, value in terms.items()}
