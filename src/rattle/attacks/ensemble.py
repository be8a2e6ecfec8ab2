"""Ensembles: each attack on the images that the ones before it did not break."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from rattle.attacks.base import Attack, AttackExtras, class_and_fields, describe_attack
from rattle.attacks.rows import spawn
from rattle.errors import RattleError
from rattle.inputs import NoGradient, check_batch, is_correct
from rattle.randomness import ImageStreams, Randomness, streams
from rattle.settings import Plain
from rattle.threat import Threat
from rattle.weights import eval_mode

StillCorrect = Callable[[Tensor, Tensor, Tensor], Tensor]  # (x_adv, x, y) -> [n] bool


class Ensemble(AttackExtras):
    """An attack made of others, its components; a subclass names them."""

    __slots__ = ()

    def components(self) -> dict[str, Attack]:
        raise NotImplementedError

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        """The point of the first component that breaks an image, else of the last."""
        x, y = check_batch(x, y)
        draws = streams(generator, len(x), x.device)
        with eval_mode(model):
            *_, found = run_components(self, model, x, y, draws, lambda x_adv, _, y: is_correct(model, x_adv, y))
        return found.x_adv

    def models(self) -> dict[str, nn.Module]:
        found = {}
        for name, component in self.components().items():
            if isinstance(component, AttackExtras):
                for other, model in component.models().items():
                    found[f"{name}/{other}"] = model
        return found

    def metadata(self) -> Plain:
        parts = {name: describe_attack(component) for name, component in self.components().items()}
        return class_and_fields(self) | {"components": parts}


def components_of(attack: Attack) -> dict[str, Attack]:
    """The components of an ensemble by name; none of another attack."""
    return attack.components() if isinstance(attack, Ensemble) else {}


@dataclass(frozen=True, slots=True)
class Found:
    """What the components of an ensemble that have run found."""

    x_adv: Tensor  # the points of all images
    correct: Tensor  # which images were correct before the first component and after each, bool [1 + components, n]
    seconds: Tensor  # of each component, [components]


def run_components(
    ensemble: Ensemble,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    draws: ImageStreams,
    still_correct: StillCorrect,
    found: Found | None = None,
) -> Iterator[Found]:
    """Run each component on the correct images that the ones before it left correct, as `still_correct` decides.

    found: the result of the first components, which are not run again. Yields the result after each component.
    """
    if found is None:
        found = Found(x.clone(), is_correct(model, x, y)[None], torch.zeros(0))
    components = list(ensemble.components().values())
    for number in range(len(found.seconds), len(components)):
        begun = time.perf_counter()
        x_adv, correct = found.x_adv.clone(), found.correct[-1].clone()
        left = correct.nonzero().squeeze(1)
        if len(left):
            try:
                points = components[number](model, x[left], y[left], generator=spawn(draws[left], number))
                x_adv[left] = points.to(x_adv)
                correct[left] = still_correct(x_adv[left], x[left], y[left])
            except NoGradient:
                pass  # leave it to the components that need none
        seconds = torch.tensor([time.perf_counter() - begun])
        found = Found(x_adv, torch.cat([found.correct, correct[None]]), torch.cat([found.seconds, seconds]))
        yield found


@dataclass(frozen=True, slots=True)
class AttackSequence(Ensemble):
    """Your own ensemble: each attack on the images that the ones before it did not break."""

    attacks: dict[str, Attack]  # name -> attack, all on the same threat

    def __post_init__(self) -> None:
        if not self.attacks or len({attack.threat for attack in self.attacks.values()}) > 1:
            raise RattleError("a sequence needs at least one attack, and the same threat for all of them")

    @property
    def threat(self) -> Threat:
        return next(iter(self.attacks.values())).threat

    def components(self) -> dict[str, Attack]:
        return dict(self.attacks)

    def metadata(self) -> Plain:
        parts = {name: describe_attack(attack) for name, attack in self.attacks.items()}
        return {"kind": "AttackSequence", "threat": asdict(self.threat), "components": parts}
