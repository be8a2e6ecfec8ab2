"""rattle export: a trained model as safetensors, TorchScript or ONNX, checked by running it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rattle.cli.console import say
from rattle.cli.options import RunPath, check_exists, parse
from rattle.errors import RattleError
from rattle.runs.paths import is_published

FILES = {"safetensors": "model.safetensors", "torchscript": "model.pt", "onnx": "model.onnx"}


@dataclass(frozen=True)
class Options:
    """Export a trained model; the file is written only if it computes the model's logits on a batch."""

    path: RunPath  # a run, a checkpoint, hf:OWNER/NAME or zoo:NAME
    format: Literal["safetensors", "torchscript", "onnx"] = "safetensors"  # format of the file
    # file to write; model.safetensors, model.pt or model.onnx in the run folder (./zoo_NAME) when not given
    out: str = ""
    raw: bool = False  # export the raw weights of a run that averages them
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that the run names as its model


def main(args: list[str]) -> None:
    options = parse(Options, args, "export")
    check_exists(options.path)
    import torch

    from rattle.models.export import export, logit_difference
    from rattle.runs.load import load_model, open_checkpoint, run_of

    saved = open_checkpoint(options.path, trust_code=options.trust_code)
    run, name = run_of(saved.path), FILES[options.format]
    out = Path(options.out) if options.out else (run.folder if run else saved.path.parent) / name
    if out.resolve() == saved.path.resolve() and not is_published(options.path):  # those lie elsewhere
        raise RattleError(f"{out} is the checkpoint itself: choose another --out")
    model = load_model(saved, averaged=not options.raw)
    x = torch.rand(8, *saved.shape, generator=torch.Generator().manual_seed(0))  # the run's data may not be available
    path = export(model, x, out, options.format)
    gap = logit_difference(model, x, path, options.format)
    say(f"wrote {path}: its logits on {len(x)} images differ from the model's by at most {gap:.1e}")
