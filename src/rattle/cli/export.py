"""rattle export: a trained model as safetensors, TorchScript or ONNX, checked by running it; or for RobustBench."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from rattle.cli.console import say
from rattle.cli.options import parse
from rattle.errors import RattleError
from rattle.models.export import difference, export
from rattle.publish.robustbench import Submission, export_robustbench
from rattle.runs.load import load_model, open_checkpoint, run_of
from rattle.runs.paths import is_published

NAMES = {
    "safetensors": "model.safetensors",
    "torchscript": "model.pt",
    "onnx": "model.onnx",
    "robustbench": "robustbench",
}


@dataclass(frozen=True)
class Options:
    """Export a trained model; the file is written only if it computes the model's logits on a batch.
    The format robustbench is a folder: all that a submission to RobustBench takes
    (docs/guides/publishing-robustbench.md)."""

    path: Annotated[str, tyro.conf.Positional]  # a run, a checkpoint, hf:OWNER/NAME or zoo:NAME
    format: Literal["safetensors", "torchscript", "onnx", "robustbench"] = "safetensors"  # of the file or folder
    # to write; model.safetensors, model.pt, model.onnx or robustbench/ in the run folder (./zoo_NAME) when not given
    out: str = ""
    raw: bool = False  # export the raw weights of a run that averages them
    data_root: str | None = None  # robustbench: where datasets live; RATTLE_DATA, or ./data, when not given
    submission: Submission = Submission()  # robustbench: about the paper
    trust_code: bool = False  # run the code (FILE.py:FUNCTION) that the run names as its model


def read(args: list[str]) -> Options:
    """The options; raises RattleError for what takes no model to refuse."""
    options = parse(Options, args, "export")
    if options.format != "robustbench" and (options.submission != Submission() or options.data_root):
        raise RattleError("--submission and --data-root belong to --format robustbench")
    return options


def main(args: list[str]) -> None:
    options = read(args)
    saved = open_checkpoint(options.path, trust_code=options.trust_code)
    run, name = run_of(saved.path), NAMES[options.format]
    out = Path(options.out) if options.out else (run.folder if run else saved.path.parent) / name
    if out.resolve() == saved.path.resolve() and not is_published(options.path):  # those lie elsewhere
        raise RattleError(f"{out} is the checkpoint itself: choose another --out")
    if options.format == "robustbench":
        submit(options, out)
        return
    model = load_model(saved, averaged=not options.raw)
    x = torch.rand(8, *saved.shape, generator=torch.Generator().manual_seed(0))  # the run's data may not be available
    path = export(model, x, out, options.format)
    gap = difference(model, x, path, options.format)
    say(f"wrote {path}: its logits on {len(x)} images differ from the model's by at most {gap:.1e}")


def submit(options: Options, out: Path) -> None:
    settings = {"averaged": not options.raw, "data_root": options.data_root, "trust_code": options.trust_code}
    files, notes = export_robustbench(options.path, out, options.submission, **settings)
    say("\n".join([*(f"wrote {file}" for file in files), *(f"note: {note}" for note in notes)]))
