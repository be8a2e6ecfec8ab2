"""rattle export writes files that compute what the model does."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rattle.cli.main import main
from rattle.data.registry import Data
from rattle.models.export import logit_difference
from support.command import Command
from support.tiny_runs import RECIPE, save_run, small_cnn


def test_export_to_safetensors_and_torchscript(tmp_path: Path, command: Command) -> None:
    run = save_run(tmp_path / "run")
    assert f"wrote {run / 'model.safetensors'}: its logits on 8 images differ" in command("export", str(run))
    assert load_file(run / "model.safetensors").keys() == small_cnn().state_dict().keys()
    assert main(["export", str(run), "--format", "torchscript", "--out", str(tmp_path / "scripts" / "net.pt")]) == 0
    x = torch.rand(3, 1, 8, 8)
    assert logit_difference(small_cnn(), x, tmp_path / "scripts" / "net.pt", "torchscript") < 1e-5


def test_export_to_onnx(tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    run = save_run(tmp_path / "run")
    assert main(["export", str(run), "--format", "onnx"]) == 0
    assert (run / "model.onnx").is_file()


def test_export_needs_no_data_and_never_replaces_the_checkpoint(tmp_path: Path, command: Command) -> None:
    run = save_run(tmp_path / "run", recipe=replace(RECIPE, data=Data(name="gone.npz")))
    path = run / "checkpoints" / "best.safetensors"
    before = path.read_bytes()
    assert main(["export", str(path)]) == 0
    assert "is the checkpoint itself: choose another --out" in command.refused("export", str(run), "--out", str(path))
    assert path.read_bytes() == before
    assert main(["export", "nowhere"]) == 2
