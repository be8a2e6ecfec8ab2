"""Switches that trade speed for bits: on while a recipe trains, and put back."""

from pathlib import Path

import pytest
import torch

from rattle.errors import RattleError
from rattle.training import loop
from rattle.training.loop import fit
from rattle.training.minibatch import numerics
from support.training import content, tiny


def test_deterministic_algorithms_are_on_while_training_and_give_the_same_bits_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    real = loop.train_step

    def noting(*args: object) -> object:
        seen.add(torch.are_deterministic_algorithms_enabled())
        return real(*args)

    monkeypatch.setattr(loop, "train_step", noting)
    plain = fit(tiny("at"), tmp_path / "plain")
    assert seen == {False}
    strict = fit(tiny("at", deterministic=True), tmp_path / "strict")
    assert seen == {False, True}
    assert not torch.are_deterministic_algorithms_enabled()
    assert content(plain)["metrics.jsonl"] == content(strict)["metrics.jsonl"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_tf32_without_a_gpu_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RattleError, match="tf32 is for NVIDIA GPUs"):
        fit(tiny("at", precision="tf32", device="cpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_operation_without_a_deterministic_form_is_named_in_a_sentence() -> None:
    def unknown() -> None:
        raise RuntimeError("bad_cuda does not have a deterministic implementation, but you set ...\nmore")

    with pytest.raises(RattleError, match="--deterministic: bad_cuda does not have"), in_numerics(deterministic=True):
        unknown()
    with pytest.raises(RuntimeError, match="bad_cuda"), in_numerics():
        unknown()


def in_numerics(**settings: bool) -> object:
    return numerics(tiny("at", **settings), torch.device("cpu"))


def test_a_device_without_bfloat16_is_refused_before_training() -> None:
    words = r"precision bf16 is not for this device \(meta\), use fp32: "
    with pytest.raises(RattleError, match=words), numerics(tiny(precision="bf16"), torch.device("meta")):
        pass
    with numerics(tiny(precision="bf16"), torch.device("cpu")):
        pass
