"""AutoAttack by the constructor and methods of the reference package (fra31/auto-attack), run by the attacks here.

from rattle.integrations import AutoAttack
adversary = AutoAttack(model, norm="Linf", eps=8 / 255, version="standard")
x_adv = adversary.run_standard_evaluation(x, y, bs=250)
"""

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rattle.attacks import Attack
from rattle.attacks.autoattack import components
from rattle.attacks.diagnostics import MOST_DIAGNOSED, is_random
from rattle.errors import RattleError, unknown
from rattle.evaluation.cache import cache_key
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import read_result
from rattle.evaluation.verify import load_images
from rattle.inputs import logits_of
from rattle.threat import Norm, Threat
from rattle.weights import eval_mode

REFERENCE_NORMS: dict[str, Norm] = {"Linf": "linf", "L2": "l2", "L1": "l1"}
AT_RANDOM = (
    "the model answers at random: as in the reference, one unlucky draw counts as broken, and draws that hide "
    "gradients count as robust; rattle.evaluate measures its expected accuracy"
)
VERSIONS = ("standard", "plus", "rand", "custom")


class AutoAttack:
    """The reference's interface. Differences: `state_path` is a folder, from which all adversarial images come back;
    every point is checked once more; `device` defaults to the model's own."""

    def __init__(
        self,
        model: nn.Module,  # returns logits for images in [0, 1]
        norm: str = "Linf",  # Linf, L2 or L1
        eps: float = 0.3,
        seed: int | None = None,  # of the random draws; the clock's when None
        verbose: bool = True,  # print what the reference prints
        attacks_to_run: Sequence[str] = (),  # with version custom: apgd-ce, apgd-dlr, fab, square, apgd-t, fab-t
        version: str = "standard",  # standard, plus, rand or custom
        is_tf_model: bool = False,  # not supported
        device: torch.device | str | None = None,  # where to run; where the model is when None
        log_path: str | Path | None = None,  # the lines go to this file, too
    ) -> None:
        if norm not in REFERENCE_NORMS:
            raise unknown("norm", norm, REFERENCE_NORMS)
        if version not in VERSIONS:
            raise unknown("version", version, VERSIONS)
        if is_tf_model:
            raise RattleError("TensorFlow models are not supported: wrap the network as a torch.nn.Module")
        if attacks_to_run and version != "custom":
            raise RattleError("attacks_to_run is for version='custom': the other versions choose their own attacks")
        self.model = model if device is None else model.to(device)
        self.norm, self.epsilon, self.seed, self.version = norm, eps, seed, version
        self.verbose, self.log_path = verbose, log_path
        self.threat = Threat(norm=REFERENCE_NORMS[norm], epsilon=eps)
        self.attacks_to_run = list(attacks_to_run if version == "custom" else components(version, self.threat))

    def run_standard_evaluation(
        self,
        x_orig: Tensor,
        y_orig: Tensor,
        bs: int = 250,
        return_labels: bool = False,
        state_path: str | Path | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Adversarial images (x itself where no attack succeeded); with `return_labels` also what is predicted there.

        bs: images in a batch. state_path: a folder; after an interruption the same call resumes there.
        """
        attacks = self.chosen()
        self.log(f"using {self.version} version including {', '.join(attacks)}.")
        x_adv = self.run(attacks, x_orig, y_orig, bs, state_path)
        return (x_adv, self.labels(x_adv, bs).to(y_orig)) if return_labels else x_adv

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Any]:
        """Each attack on all images, on its own: {attack: adversarial images (and labels)}."""
        attacks, found = self.chosen(), {}
        self.log(f"using {self.version} version including {', '.join(attacks)}")
        for name, attack in attacks.items():
            begun = time.time()
            x_adv = self.run({name: attack}, x_orig, y_orig, bs, log=lambda line: None)
            labels = self.labels(x_adv, bs)
            found[name] = (x_adv, labels.to(y_orig)) if return_labels else x_adv
            accuracy = float((labels == y_orig.cpu()).double().mean())
            self.log(f"robust accuracy by {name.upper()}\t{accuracy:.2%}\t(time attack: {time.time() - begun:.1f} s)")
        return found

    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """The share of images that the model classifies correctly."""
        accuracy = float((self.labels(x_orig, bs) == y_orig.cpu()).double().mean())
        self.log(f"clean accuracy: {accuracy:.2%}")
        return accuracy

    def chosen(self) -> dict[str, Attack]:
        """The attacks that run, in order; `attacks_to_run` may be changed after construction, as in the reference."""
        if self.version == "custom":
            known = components("plus", self.threat) | components("standard", self.threat)
        else:
            known = components(self.version, self.threat)
        for name in self.attacks_to_run:
            if name not in known:
                raise unknown("attack", name, known)
        if not self.attacks_to_run:
            raise RattleError("attacks_to_run names no attack: give at least one, such as apgd-ce")
        return {name: known[name] for name in self.attacks_to_run}

    def run(
        self,
        attacks: Mapping[str, Attack],
        x_orig: Tensor,
        y_orig: Tensor,
        bs: int,
        state_path: str | Path | None = None,
        log: Callable[[str], None] | None = None,
    ) -> Tensor:
        """Each attack on the images that the ones before it did not break; the images, changed where one succeeded."""
        log, device = log or self.log, next(self.model.parameters(), x_orig).device
        x, y = x_orig.to(device), y_orig.to(device)
        with eval_mode(self.model):
            random = is_random(self.model, x[:MOST_DIAGNOSED])
        if random:
            log(f"warning: {AT_RANDOM}")
            warnings.warn(AT_RANDOM, stacklevel=3)
        seed = self.seed or 0
        if self.seed is None and state_path is None:
            seed = int(time.time())
        robust = evaluate(self.model, x, y, {}, batch_size=bs, check_model=False, quiet=True).clean
        log(f"initial accuracy: {sum(robust) / len(robust):.2%}")
        x_adv, begun = x.clone(), time.time()
        folder = tempfile.TemporaryDirectory() if state_path is None else nullcontext(str(state_path))
        with folder as place:
            for number, (name, attack) in enumerate(attacks.items()):
                if not any(robust):
                    break
                settings = {"batch_size": bs, "seed": seed + number, "mask": robust}  # other draws for each
                key, file = cache_key(self.model, x, y, attack, **settings), Path(place, f"{name}.json")
                done = read_result(file, name, key)
                if done is None:
                    done = evaluate(
                        self.model,
                        x,
                        y,
                        {name: attack},
                        out=place,
                        save_adversarial=True,
                        check_model=False,
                        metadata={"mark": key},
                        quiet=True,
                        **settings,
                    ).to_plain()
                robust = [bool(flag) for flag in done["attacks"][name]["flags"]]
                broken = load_images(Path(place, f"{name}-adversarial.npz"))
                x_adv[broken.index.to(device)] = broken.x_adv.to(x_adv)
                accuracy, seconds = sum(robust) / len(robust), time.time() - begun
                log(f"robust accuracy after {name.upper()}: {accuracy:.2%} (total time {seconds:.1f} s)")
        largest, missing = float(self.threat.distance(x_adv, x).max()), int(x_adv.isnan().sum())
        extremes = f"max: {float(x_adv.max()):.5f}, min: {float(x_adv.min()):.5f}"
        log(f"max {self.norm} perturbation: {largest:.5f}, nan in tensor: {missing}, {extremes}")
        log(f"robust accuracy: {sum(robust) / len(robust):.2%}")
        return x_adv.to(x_orig.device)

    @torch.no_grad()
    def labels(self, x: Tensor, bs: int) -> Tensor:
        """The classes predicted, [n], on the CPU."""
        device = next(self.model.parameters(), x).device
        with eval_mode(self.model):
            return torch.cat([logits_of(self.model, part.to(device)).argmax(1).cpu() for part in x.split(bs)])

    def log(self, line: str) -> None:
        if not self.verbose:
            return
        print(line, flush=True)
        if self.log_path is not None:
            with open(self.log_path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
