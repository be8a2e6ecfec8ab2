"""Targets: a model with the images to evaluate it on, from a run, a checkpoint, or any network and its weights."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from rattle.data.dataset import Images, Names
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.network import Network, untrained
from rattle.inputs import as_float
from rattle.models import check_width, load_weights
from rattle.models.layers import normalisation
from rattle.models.pretrained import file_normalisation, normalises
from rattle.models.registry import create_model
from rattle.models.timm import parse_spec
from rattle.runs import distributed
from rattle.runs.checkpoint import Checkpoint
from rattle.runs.io import Plain
from rattle.runs.load import load_model, open_checkpoint, run_of
from rattle.threat import Threat

ONNX_IMAGES = 8  # images on which an ONNX file's network is held against onnxruntime
LARGEST_DECODED = 2**31  # bytes of decoded pictures; more of them are decoded batch by batch, again for every attack


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model in evaluation mode, on a device, the images to evaluate it on, and where results go."""

    name: str  # in tables
    model: nn.Module
    test: Images
    classes: Names
    threat: Threat  # of its training; linf 8/255 if that is not known
    metadata: Plain  # what a result file says of it: checkpoint, recipe, data
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
        return chosen if chosen.decoded and chosen.nbytes > LARGEST_DECODED else chosen.to(self.device)

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


def create(network: Network, classes: int, channels: int) -> nn.Module:
    """The network before its file of weights is loaded, its normalisation in front."""
    return create_model(
        network.model,
        classes=classes,
        channels=channels,
        width=network.width,
        activation=network.activation,
        normalise=(network.mean, network.std) if network.mean else None,
        pretrained=not network.weights,
    )


def with_normalisation(network: Network, classes: int, channels: int) -> Network:
    """The network with the mean and std that its file of weights holds, unless it has them."""
    if network.mean and network.model.startswith("timm:") and parse_spec(network.model)[1].get("pretrained"):
        raise RattleError("a pretrained model of timm normalises as its config says: leave out --mean and --std")
    stored = None if network.mean or not network.weights else file_normalisation(network.weights)
    if stored is None or normalises(create(network, classes, channels)):
        return network
    return replace(network, mean=tuple(stored[0]), std=tuple(stored[1]))


def build_network(network: Network, classes: int, channels: int) -> nn.Module:
    model = create(with_normalisation(network, classes, channels), classes, channels)
    if network.weights:
        load_weights(network.weights, model)
    return model.eval()


def build_untrained(network: Network, classes: int, channels: int) -> nn.Module:
    """Without a file of weights: refused if it draws them at random, unless that is what was asked for.

    A builder that loads weights of its own gives the same ones whatever the random state.
    """
    built = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            built.append(build_network(network, classes, channels))
        if network.random_weights or "pretrained" in network.model:  # the latter may take a download
            return built[0]
    second = built[1].state_dict()
    if any(not torch.equal(value, second[name]) for name, value in built[0].state_dict().items()):
        raise untrained(network.model)
    return built[0]


def from_onnx(network: Network, test: Images, channels: int) -> nn.Module:
    """The network of an ONNX file, compared with onnxruntime on the first test images."""
    from rattle.models.onnx import read_onnx

    x = as_float(test[torch.arange(min(ONNX_IMAGES, len(test)))].x, channels_last=False)
    return read_onnx(network.model, x, normalisation((network.mean, network.std) if network.mean else None, channels))


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
        name, model = f"{network.model} {file.name}", build_network(network, classes, source.channels)
    else:
        file = Path(network.model.rpartition(":")[0] or network.model)
        if network.model.startswith("timm:"):
            file = Path(re.sub(r"[^\w.-]+", "-", network.model) + ".pt")
        if network.model.endswith(".onnx"):
            model = from_onnx(network, source.test, source.channels)
        else:
            model = build_untrained(network, classes, source.channels)
        name = network.model
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
