"""rattle export: a trained model as safetensors, TorchScript or ONNX, checked by running it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from rattle.data import to_float
from rattle.export import Format, difference, export
from rattle.targets import saved_target
from rattle.verbs.options import parse

SUFFIXES = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


@dataclass(frozen=True)
class Options:
    """Export a trained model; the file is run on a batch and compared before it gets its name."""

    path: Annotated[str, tyro.conf.Positional]  # a run folder or a checkpoint file
    format: Format = "safetensors"
    out: str = ""  # file to write; model.SUFFIX in the run folder when not given


def main(args: list[str]) -> None:
    options = parse(Options, args, "export")
    target = saved_target(options.path)
    x = to_float(target.test[torch.arange(min(8, len(target.test)))].x)
    out = Path(options.out) if options.out else target.results.parent / f"model{SUFFIXES[options.format]}"
    path = export(target.model, x, out, options.format)
    apart = difference(target.model, x, path, options.format)
    print(f"wrote {path}: its logits on {len(x)} images differ from the model's by at most {apart:.1e}")
