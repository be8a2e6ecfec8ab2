"""What attacks ask of a network: forward and backward passes counted in images, exact and alike on every machine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rattle.errors import RattleError
from rattle.runs.progress import Console, NullConsole
from rattle.runs.source import environment
from reproduction.bench.cases import COMPONENTS, Case, cases_of
from reproduction.bench.setup import Setup, prepare

THEIRS = ", pyautoattack"  # how the cases of the reference end


@dataclass
class Tally:
    """Images that went through a network, forward and backward; copies of the network count into the same one."""

    forward: int = 0
    backward: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tally":
        return self


class Counter(torch.autograd.Function):
    """The images as they are; counts them, and the rows of every gradient that comes back to them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tally: Tally) -> Tensor:
        if not isinstance(x, Tensor):  # a tracer would count once and copy the network without its counter
            raise RattleError("a counted network cannot be traced")
        ctx.tally = tally
        tally.forward += len(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        ctx.tally.backward += len(gradient)
        return gradient, None


class Counted(nn.Module):
    """A network that counts what it is asked.

    >>> net = Counted(nn.Linear(2, 3))
    >>> net(torch.zeros(5, 2, requires_grad=True)).sum().backward()
    >>> net.tally
    Tally(forward=5, backward=5)
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.tally = model, Tally()

    def forward(self, x: Tensor) -> Any:
        return self.model(Counter.apply(x, self.tally))

    def count(self, case: Case) -> Tally:
        """What one run of a case asks of this network."""
        self.tally.forward = self.tally.backward = 0
        case.run()
        return replace(self.tally)


def count_passes(setup: Setup, console: Console | None = None) -> dict[str, Tally]:
    """What each component of AutoAttack asks of the network, and the reference's where it is installed."""
    subject = prepare(setup)
    model = Counted(subject.plain)
    cases = cases_of(replace(subject, plain=model), ("autoattack",))
    found = {}
    with (console or NullConsole()).progress(f"passes {setup.model}", len(cases)) as advance:
        for name, case in cases.items():
            found[name] = model.count(case)
            advance()
    return found


def pass_rows(found: Mapping[str, Tally], images: int) -> list[list[str]]:
    """The table on the terminal: a component a line, ours beside the reference's, the sums last."""
    lines, sums = [], {"": Tally(), THEIRS: Tally()}
    for name in COMPONENTS:
        sides = [found.get(name + suffix) for suffix in sums]
        for total, side in zip(sums.values(), sides, strict=True):
            total.forward, total.backward = (a + b for a, b in zip(both(total), both(side), strict=True))
        lines.append(pass_row(name, sides, images))
    return [*lines, pass_row("all", [sums[""], sums[THEIRS] if sum(both(sums[THEIRS])) else None], images)]


def both(tally: Tally | None) -> tuple[int, int]:
    return (tally.forward, tally.backward) if tally else (0, 0)


def pass_row(name: str, sides: list[Tally | None], images: int) -> list[str]:
    """Forward passes of both, backward passes of both, all of ours for an image, and ours over the reference's."""
    cells = [str(getattr(side, field)) if side else "" for field in ("forward", "backward") for side in sides]
    ours, theirs = (sum(both(side)) for side in sides)
    return [name, *cells, f"{ours / images:.1f}", f"{ours / theirs:.3f}" if theirs else ""]


PASS_COLUMNS = ["component", "forward", "pyautoattack's", "backward", "pyautoattack's", "both, an image", "of theirs"]


def passes_to_plain(setup: Setup, found: Mapping[str, Tally]) -> dict[str, Any]:
    """What --json writes."""
    passes = {name: asdict(tally) for name, tally in found.items()}
    return {"settings": asdict(setup), "machine": environment(), "passes": passes}
