"""rattle export: a trained model as safetensors, TorchScript or ONNX, checked by running it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.models.export import Format, difference, export
from rattle.runs.load import load_model, open_checkpoint, run_of

SUFFIXES = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


@dataclass(frozen=True)
class Options:
    """Export a trained model; the file is written only if it computes the model's logits on a batch."""

    path: Annotated[str, tyro.conf.Positional]  # a run folder or a checkpoint file
    format: Format = "safetensors"  # of the file
    out: str = ""  # file to write; model.safetensors, model.pt or model.onnx in the run folder when not given
    raw: bool = False  # export the raw weights of a run that averages them


def main(args: list[str]) -> None:
    options = parse(Options, args, "export")
    saved = open_checkpoint(options.path)
    run, name = run_of(saved.path), f"model{SUFFIXES[options.format]}"
    out = Path(options.out) if options.out else (run.folder if run else saved.path.parent) / name
    if out.resolve() == saved.path.resolve():
        raise RattleError(f"{out} is the checkpoint itself: choose another --out")
    model = load_model(saved, averaged=not options.raw)
    x = torch.rand(8, *saved.shape, generator=torch.Generator().manual_seed(0))  # the run's data may not be available
    path = export(model, x, out, options.format)
    gap = difference(model, x, path, options.format)
    print(f"wrote {path}: its logits on {len(x)} images differ from the model's by at most {gap:.1e}")
