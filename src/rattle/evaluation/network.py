"""A network that no run trained: its name, its weights, and what they were trained with. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from rattle.errors import RattleError
from rattle.models.registry import BUILDERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and a file of weights, such as other code saves them."""

    model: str = ""  # a network's name, FILE.py:build, timm:NAME or FILE.onnx
    weights: str | None = None  # file of its weights, saved by this or other code; not needed if build() loads them
    width: int | None = None  # of a named network; the published width when not given
    activation: Literal["relu", "silu"] = "relu"  # of a named network
    mean: tuple[float, ...] = ()  # normalisation of its training, per channel; read from --weights if stored there
    std: tuple[float, ...] = ()  # std per channel, with --mean
    random_weights: bool = False  # allow weights drawn at random, from seed 0
    classes: int | None = None  # outputs of --model; the number of classes in the data when not given
    resize: int | None = None  # scale the images to this side, if the model needs another size
    crop: int | None = None  # decode a folder on the fly: side of the centre of pictures scaled to --resize

    def check_weights(self) -> None:
        """Refuse what contradicts itself."""
        if bool(self.mean) != bool(self.std):
            raise RattleError("--mean and --std go together: a number for each channel")
        if self.weights and self.random_weights:
            raise RattleError("give --weights or --random-weights, not both")
        if self.model.endswith(".onnx") and (self.weights or self.random_weights or self.width):
            raise RattleError(f"{self.model} has its weights: leave out --weights, --random-weights and --width")
        if self.model in BUILDERS.built_in and not (self.weights or self.random_weights):
            raise untrained(self.model)


def untrained(model: str) -> RattleError:
    return RattleError(
        f"--model {model} has no trained weights of its own: give them with --weights FILE "
        "(rattle evaluate measures untrained ones with --random-weights)"
    )
