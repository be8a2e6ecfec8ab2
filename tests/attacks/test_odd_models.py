"""The contract for models: odd but legitimate modules, each attacked by every attack in every mode of the caller.

The verdict of PGD on each image is that of a textbook loop in plain torch, those of all attacks are the same in every
mode, or a sentence says why not; weights, modes and requires_grad stay. A new fast path has to pass this list.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

from rattle.attacks import APGD, FAB, PGD, AttackSequence, AutoAttack, Square
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.inputs import NoGradient
from rattle.models.registry import create_model
from rattle.threat import Threat
from rattle.weights import eval_mode

THREAT = Threat(epsilon=0.06)
EPSILONS = (0.06, 0.02, 0.006, 0.2, 0.6)  # the first that breaks some images of a model and not all
CLASSES, SIDE, N = 5, 8, 24


def images() -> Tensor:
    return torch.rand(N, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def small(*, norm: bool = True) -> nn.Sequential:
    """A convolution, BatchNorm with statistics of its own, and a linear head."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 6, 3, stride=2, padding=1)]
    if norm:
        bn = nn.BatchNorm2d(6)
        nn.init.uniform_(bn.running_mean, -0.2, 0.2)
        nn.init.uniform_(bn.weight, 0.5, 1.5)
        layers.append(bn)
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(6 * 16, CLASSES))


class Calls(nn.Module):
    """A module whose forward is a function of an inner network and the images."""

    def __init__(self, inner: nn.Module, function: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.inner, x)


@dataclass
class Output:
    logits: Tensor


def substituted(inner: nn.Module, x: Tensor) -> Tensor:
    """BatchNorm's scale is another one in every call than the parameter says."""
    return functional_call(inner, {"1.weight": 3 * inner.get_parameter("1.weight")}, x)


def no_grad(inner: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return inner(x)


def parametrized() -> nn.Module:
    model = small()
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[-1])
    return model.eval()


def hooked() -> nn.Module:
    model = small()
    model[0].register_forward_pre_hook(lambda _, given: (given[0] * 1.5,))
    model[-1].register_forward_hook(lambda _, given, z: z * 2)
    return model


def shared() -> nn.Module:
    torch.manual_seed(0)
    conv, bn = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
    return nn.Sequential(conv, bn, nn.Tanh(), conv, bn, nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))


class Bare(nn.Module):
    """No parameters and no buffers: differences of quadrant means."""

    def forward(self, x: Tensor) -> Tensor:
        quarters = nn.functional.avg_pool2d(x, SIDE // 2).flatten(1)[:, :CLASSES]
        return 20 * (quarters - quarters.mean(1, keepdim=True))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.RNN(3, 16, batch_first=True), nn.Linear(16, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(8 * x.flatten(2).transpose(1, 2) - 4)[0].mean(1))


class Attention(nn.Module):
    """A vision transformer of one block."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch = nn.Conv2d(3, 16, 4, stride=4)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


class Dropping(nn.Module):
    """Dropout whose training mode is left on in one place and off in another."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = small(), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.body(x))


def quantised() -> nn.Module:
    return Calls(small(), lambda inner, x: (inner(torch.round(x.detach() * 255) / 255) * 64).round() / 64)


def traced() -> nn.Module:
    return torch.jit.trace(small().eval(), images()[:2])


def scripted() -> nn.Module:
    return torch.jit.script(small().eval())


def group_norm() -> nn.Module:
    model = small()
    model[1] = nn.GroupNorm(2, 6)
    return model


def one_image_at_a_time(inner: nn.Module, x: Tensor) -> Tensor:
    """As exporters write a network whose batch was a constant 1."""
    return inner(x.reshape(1, -1))


def pre_act() -> nn.Module:
    torch.manual_seed(0)
    return Calls(create_model("preact18", classes=CLASSES, channels=3, width=4), lambda inner, x: inner(40 * x - 20))


def with_activation(activation: nn.Module) -> nn.Module:
    model = small()
    model[2] = activation
    return model


ODD: dict[str, Callable[[], nn.Module]] = {
    "plain": small,
    "without normalisation": lambda: small(norm=False),
    "functional_call": lambda: Calls(small(), substituted),
    "parametrized": parametrized,
    "hooks": hooked,
    "shared BatchNorm": shared,
    "tuple output": lambda: Calls(small(), lambda inner, x: (inner(x), x)),
    "dict output": lambda: Calls(small(), lambda inner, x: {"logits": inner(x), "loss": None}),
    "dataclass output": lambda: Calls(small(), lambda inner, x: Output(inner(x))),
    "no parameters": Bare,
    "double": lambda: small().double(),
    "bfloat16": lambda: small(norm=False).bfloat16(),
    "DataParallel": lambda: nn.DataParallel(small()),
    "frozen": lambda: small().requires_grad_(False),
    "training mode": lambda: Dropping().train(),
    "partly in evaluation mode": lambda: nn.Sequential(small().eval(), nn.Identity()).train(),
    "traced": traced,
    "scripted": scripted,
    "view": lambda: Calls(nn.Linear(3 * SIDE * SIDE, CLASSES), lambda inner, x: inner(x.view(len(x), -1))),
    "Reshape(1, -1)": lambda: Calls(nn.Linear(3 * SIDE * SIDE, CLASSES), one_image_at_a_time),
    "transformer": Attention,
    "recurrent": Recurrent,
    "in-place": lambda: with_activation(nn.ReLU(inplace=True)),
    "scaled images": lambda: Calls(small(), lambda inner, x: inner((x - 0.5) / 0.25)),
    "resized images": lambda: Calls(small(), lambda inner, x: inner(nn.functional.interpolate(x, size=8, mode="area"))),
    "group norm": group_norm,
    "pre-act ResNet": pre_act,
}


def attacks_on(threat: Threat) -> dict[str, Any]:
    return {
        "pgd": PGD(threat=threat, steps=4, step_size=threat.epsilon / 2, start="none"),
        "apgd-ce": APGD(threat=threat, steps=4),
        "apgd-t": APGD(threat=threat, steps=3, loss="dlr-targeted", targets=2),
        "fab-t": FAB(threat=threat, steps=3, targets=2),
        "square": Square(threat=threat, queries=12),
    }


ATTACKS = attacks_on(THREAT)
CONTEXTS: dict[str, Callable[[], Any]] = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def textbook_logits(model: nn.Module, x: Tensor) -> Tensor:
    """One image at a time, in the type of the model's weights: what every model here takes."""
    weights = next((p for p in model.parameters() if p.is_floating_point()), x)
    rows = []
    for image in x.to(weights.dtype).split(1):
        out = model(image)
        if isinstance(out, tuple):
            out = out[0]
        elif isinstance(out, dict):
            out = out["logits"]
        rows.append(getattr(out, "logits", out).to(x.dtype))
    return torch.cat(rows)


def textbook_pgd(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    x_adv = x.clone()
    for _ in range(4):
        x_adv = x_adv.detach().requires_grad_()
        loss = nn.functional.cross_entropy(textbook_logits(model, x_adv), y, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x_adv)
        x_adv = x_adv.detach() + epsilon / 2 * gradient.sign()
        x_adv = torch.min(torch.max(x_adv, x - epsilon), x + epsilon).clamp(0, 1)
    return x_adv


def state(model: nn.Module) -> tuple[Any, ...]:
    """All that an attack must leave as it found it."""
    sums = {name: float(value.double().sum()) for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    return sums, modes, [(p.requires_grad, p.grad is None) for p in model.parameters()]


@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")
@pytest.mark.parametrize("name", ODD)
def test_an_odd_model_is_attacked_as_by_a_textbook_in_every_mode_of_the_caller(name: str) -> None:
    model, x = ODD[name](), images()
    before = state(model)
    with eval_mode(model):
        y = textbook_logits(model, x).argmax(1)
        for epsilon in EPSILONS:
            correct = textbook_logits(model, textbook_pgd(model, x, y, epsilon)).argmax(1) == y
            if bool(correct.any()) and not bool(correct.all()):
                break
        else:
            pytest.fail("no epsilon breaks some images and leaves others")
    for attack_name, attack in attacks_on(Threat(epsilon=epsilon)).items():
        verdicts = {}
        for context_name, context in CONTEXTS.items():
            with context():
                given = x.clone(), y.clone()  # inference tensors where the caller is in that mode
                result = evaluate(model, *given, {attack_name: attack}, check_model=False)
            verdicts[context_name] = result.worst_case
            assert state(model) == before, (attack_name, context_name)
        assert verdicts["plain"] == verdicts["no_grad"] == verdicts["inference_mode"], attack_name
        if attack_name == "pgd":
            assert verdicts["plain"] == correct.tolist()


WITHOUT_GRADIENT: dict[str, Callable[[], nn.Module]] = {
    "no_grad": lambda: Calls(small(), no_grad),
    "detached": lambda: Calls(small(), lambda inner, x: inner(x).detach()),
    "quantised": quantised,
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_a_model_without_gradient_is_attacked_by_what_needs_none(name: str) -> None:
    model, x = WITHOUT_GRADIENT[name]().eval(), images()
    y = model(x).argmax(1)
    with pytest.raises(NoGradient, match="no gradient"):
        evaluate(model, x, y, ATTACKS["pgd"])
    square = Square(threat=THREAT, queries=60)
    found = evaluate(model, x, y, AttackSequence({"apgd-ce": ATTACKS["apgd-ce"], "square": square}))
    assert any("no gradient" in sentence for sentence in found.warnings)
    assert found.robust_accuracy < 1


def test_a_model_built_in_inference_mode_is_refused_and_its_copy_attacked() -> None:
    with torch.inference_mode():
        model = small().eval()
    x, wanted = images(), [p.requires_grad for p in model.parameters()]
    with torch.no_grad():
        y = model(x).argmax(1)
    with pytest.raises(RattleError, match="inference_mode"):
        evaluate(model, x, y, ATTACKS["pgd"])
    assert [p.requires_grad for p in model.parameters()] == wanted
    assert evaluate(copy.deepcopy(model), x, y, ATTACKS["pgd"]).robust_accuracy < 1


def test_normalisation_by_the_batch_is_warned_of() -> None:
    x, usual, odd = images(), small(), small()
    odd[1] = nn.BatchNorm2d(6, track_running_stats=False)
    for model, warned in ((usual, False), (odd, True)):
        result = evaluate(model, x, model.eval()(x).argmax(1), ATTACKS["pgd"])
        assert any("others in its batch" in sentence for sentence in result.warnings) == warned


def test_a_compiled_model_is_not_compiled_again_for_every_number_of_rows() -> None:
    compiled = []

    def count(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model, x = small().eval(), images()
    y = model(x).argmax(1)
    flags = []
    for each in (model, torch.compile(model, backend=count)):
        flags.append(evaluate(each, x, y, AutoAttack(threat=THREAT), check_model=False).worst_case)
    assert flags[0] == flags[1]
    assert len(compiled) <= 4
