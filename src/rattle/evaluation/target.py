"""Targets: a model with the images to evaluate it on, from a run, a checkpoint, or any network and its weights."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rattle.data import Images
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.inputs import as_float
from rattle.models import check_width, load_weights
from rattle.models.layers import MeanStd
from rattle.models.pretrained import file_normalisation, normalises
from rattle.models.registry import BUILDERS, create_model
from rattle.models.timm import parse_spec
from rattle.runs import distributed
from rattle.runs.checkpoint import Checkpoint
from rattle.runs.load import load_model, open_checkpoint, run_of
from rattle.threat import Threat

IN_MEMORY = 2**31  # bytes of decoded pictures; more of them are decoded batch by batch, anew for every attack


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model in evaluation mode, on a device, the images to evaluate it on, and where results go."""

    name: str  # in tables
    model: nn.Module
    test: Images
    classes: tuple[str, ...]
    threat: Threat  # of its training; linf 8/255 if that is not known
    metadata: dict[str, Any]  # what a result file says of it: checkpoint, recipe, data
    results: Path  # the folder for result files
    where: str = "auto"  # the device that the model is moved to: cuda, mps or cpu; auto takes what there is

    def __post_init__(self) -> None:
        if len(self.test) == 0:
            raise RattleError(f"{self.metadata['data']} has no test images to evaluate on")
        check_width(self.model, as_float(self.test[torch.arange(1)].x, channels_last=False), len(self.classes))
        self.model.to(distributed.choose_device(self.where))

    def images(self, index: Tensor | None = None) -> Images:
        """The test images of an index, or all of them, on the model's device; many encoded ones stay encoded."""
        chosen = self.test if index is None else self.test.subset(index)
        return chosen if chosen.decoded and chosen.nbytes > IN_MEMORY else chosen.to(self.device)

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))


def target_from_checkpoint(
    path: str | Path | Checkpoint,
    *,
    data: str | None = None,
    root: str | None = None,
    averaged: bool = True,
    device: str = "auto",
    trust_code: bool = False,
) -> Target:
    """A run folder or a checkpoint, as path or opened.

    data: images other than the run's own; root: where datasets are; averaged: prefer averaged weights to the raw ones;
    device: where the model goes; trust_code: as for `load`, of a path.
    """
    saved = path if isinstance(path, Checkpoint) else open_checkpoint(path, trust_code=trust_code)
    recipe, run = saved.recipe, run_of(saved.path)
    own = replace(recipe.data, root=root or recipe.data.root)
    other = own.other(data) if data else own
    source = other.source()
    return Target(
        name=recipe.with_seed(recipe.name),
        model=load_model(saved, averaged=averaged),
        test=source.test,
        classes=saved.classes,
        threat=recipe.attack.threat,
        metadata={"checkpoint": str(saved.path), "recipe": recipe.name, "data": other.name},
        results=run.results if run else saved.path.parent / "results",
        where=device,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and a file of weights, such as other code saves them."""

    model: str = ""  # a network's name, or FILE.py:build, to evaluate without a run
    weights: str | None = None  # its weights, as rattle or other people's code saves them; build() may load its own
    width: int | None = None  # of a named network; the published width when not given
    activation: Literal["relu", "silu"] = "relu"  # of a named network
    mean: tuple[float, ...] = ()  # of each channel, where its training normalised; read from --weights when it is there
    std: tuple[float, ...] = ()  # goes with --mean
    random_weights: bool = False  # evaluate --model without trained weights, as drawn at random from seed 0
    classes: int | None = None  # of --model; as many as the data have when not given
    resize: int | None = None  # side to scale the images to, where the model is made for another size than theirs
    crop: int | None = None  # decode a folder on the fly: side of the centre, of --resize or 8/7 of it

    def check_weights(self) -> None:
        """Refuse what contradicts itself."""
        if bool(self.mean) != bool(self.std):
            raise RattleError("--mean and --std go together: a number for each channel")
        if self.weights and self.random_weights:
            raise RattleError("--weights and --random-weights are two answers to one question: give one of them")
        if self.model in BUILDERS.built_in and not (self.weights or self.random_weights):
            raise untrained(self.model)

    def build(self, classes: int, channels: int) -> nn.Module:
        if self.mean and self.model.startswith("timm:") and parse_spec(self.model)[1].get("pretrained"):
            raise RattleError("a pretrained model of timm normalises as its config says: leave out --mean and --std")

        def create(normalise: MeanStd) -> nn.Module:
            return create_model(
                self.model,
                classes=classes,
                channels=channels,
                width=self.width,
                activation=self.activation,
                normalise=normalise,
                pretrained=not self.weights,
            )

        network = create((self.mean, self.std) if self.mean else None)
        if self.weights:
            if not normalises(network) and (stored := file_normalisation(self.weights)):
                network = create(stored)
            load_weights(self.weights, network)
        return network.eval()

    def build_untrained(self, classes: int, channels: int) -> nn.Module:
        """Without a file of weights: refused if it draws them at random, unless that is what was asked for.

        A builder that loads weights of its own gives the same ones whatever the random state.
        """
        built = []
        for seed in (0, 1):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                built.append(self.build(classes, channels))
            if self.random_weights or "pretrained" in self.model:  # the latter may take a download
                return built[0]
        second = built[1].state_dict()
        if any(not torch.equal(value, second[name]) for name, value in built[0].state_dict().items()):
            raise untrained(self.model)
        return built[0]


def target_from_weights(network: Network, data: str, *, root: str | None = None, device: str = "auto") -> Target:
    """Any network on any data: a dataset's name, a file or a folder.

    root: where datasets are; device: where the model goes.
    """
    network.check_weights()
    source = Data(name=data, root=root, resize=network.resize, crop=network.crop).source()
    found = len(source.classes)
    classes = network.classes or found
    if classes < found:
        raise RattleError(f"--classes {classes} is fewer than the {found} classes of {data}")
    if network.weights:
        file = Path(network.weights)
        name, model = f"{network.model} {file.name}", network.build(classes, source.channels)
    else:
        file = Path(network.model.rpartition(":")[0] or network.model)
        if network.model.startswith("timm:"):
            file = Path(re.sub(r"[^\w.-]+", "-", network.model) + ".pt")
        name, model = network.model, network.build_untrained(classes, source.channels)
    return Target(
        name=name,
        model=model,
        test=source.test,
        classes=(*source.classes, *map(str, range(found, classes))),
        threat=Threat(),
        metadata={"checkpoint": network.weights, "recipe": network.model, "data": data},
        results=file.with_name(f"{file.name}-results"),  # each file of weights has its own
        where=device,
    )


def untrained(model: str) -> RattleError:
    return RattleError(
        f"--model {model} has no trained weights of its own: give them with --weights FILE, or say "
        "--random-weights if that is what you want to measure"
    )
