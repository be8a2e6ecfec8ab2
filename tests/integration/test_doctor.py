"""rattle doctor --device: its findings on the CPU, on a device that is not the CPU, and where a check fails."""

from dataclasses import replace

import pytest
import torch

from rattle.cli import device as checks
from rattle.cli.device import Finding, check_step, check_verdicts, findings, step_flop, timed_recipe
from rattle.inputs import images_checked
from support.command import Command
from support.other_device import DEVICE, other_device

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_every_check_passes_on_the_cpu(command: Command) -> None:
    out = command("doctor", "--device", "cpu")
    assert "FAILED" not in out
    assert out.count("| ok |") >= 5
    assert "0 of 50 verdicts differ" in out
    assert out.count("images/s") >= 3


@pytest.mark.slow
def test_a_device_that_is_not_the_cpu_takes_the_step_and_gives_the_verdicts() -> None:
    with other_device(), images_checked():
        step, verdicts = check_step(DEVICE), check_verdicts(DEVICE, 8, ("pgd2", "fgsm"))
    assert step.passed
    assert verdicts.passed
    assert "pgd2 0, fgsm 0" in verdicts.detail


def test_a_step_that_differs_and_a_check_that_raises_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = iter([torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 1.1])])
    monkeypatch.setattr(checks, "gradient_of_a_step", lambda _: next(gradients))
    assert check_step(CPU).passed is False

    def broken(_: torch.device) -> Finding:
        raise RuntimeError("no kernel image")

    for name in ("step", "verdicts", "waiting", "resume", "bf16", "autoattack", "ranks"):
        monkeypatch.setattr(checks, f"check_{name}", broken)
    monkeypatch.setattr(checks, "speeds", lambda _: iter(()))
    assert {(each.passed, each.detail) for _, each in findings(CPU)} == {(False, "RuntimeError: no kernel image")}


def test_the_work_of_a_step_is_27_forward_passes() -> None:
    recipe = replace(timed_recipe(torch.device("cuda")), device="cpu", batch_size=2)
    assert step_flop(recipe) == pytest.approx(27 * 1.1108e9, rel=1e-2)  # PreAct-18: 0.555 billion multiplications
