"""What a run ran on: versions and hardware, and the user's files: that builds its network, and plug-ins.

The text of the file is kept in the run, and a file that is gone or changed is noticed.
The copy is for people to read, and never runs.
"""

import hashlib
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path

from rattle.errors import RattleError
from rattle.models.user import plugins, source_file
from rattle.recipes.recipe import Recipe
from rattle.runs.io import write_atomically
from rattle.runs.paths import Run
from rattle.settings import Plain


def keep_source(run: Run, recipe: Recipe) -> Plain:
    """Keep the text of the recipe's FILE.py and of plug-ins in a run that begins; what environment.json says of it."""
    about = {}
    path = source_file(recipe.model)
    if path is not None and path.is_file():
        about["source"] = keep(run, path)
    if plugins():
        about["plugins"] = [keep(run, path) for path in plugins()]
    return about


def keep(run: Run, path: Path) -> dict[str, str]:
    """Keep the text of a file in the run."""
    kept = run.source / path.name
    if not kept.exists():
        write_atomically(kept, path.read_bytes())
    return {"file": str(path), "sha256": sha256(kept)}


def check_version(run: Run | None, recipe: Recipe) -> None:
    """Refuse to build the network of a run whose file is gone, and warn where the file has changed since."""
    path = source_file(recipe.model)
    kept = run.source / path.name if run and path else None
    if run is None or path is None or kept is None or not kept.is_file():
        return
    advice = f"the run keeps its text: read {kept}, then copy it back"
    if not path.is_file():
        raise RattleError(f"{path}, which builds the network of {run.folder}, is not in {Path.cwd()}; {advice}")
    if sha256(path) != sha256(kept):
        warnings.warn(f"{path} has changed since it built the network of {run.folder}; {advice}", stacklevel=3)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment() -> Plain:
    """Versions, commit and hardware, as plain data for result files."""
    import numpy
    import torch

    from rattle import __version__

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "rattle": __version__,
        "commit": commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "device": device,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The commit of the source tree, with + if files were changed; None if rattle does not run from a source tree."""
    settings = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "timeout": 5, "check": True}
    try:
        subprocess.run(["git", "ls-files", "--error-unmatch", __file__], **settings)
        describe = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--match", ""]
        return subprocess.run(describe, **settings).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
