"""What a run ran on."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
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
