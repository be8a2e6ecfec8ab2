"""The memory of large tensors is kept for the next ones."""

import os
import platform
import subprocess
import sys

import pytest

MEASURE = """
import resource, sys
from rattle.cli.main import keep_memory
import numpy as np
if sys.argv[1] == "kept":
    keep_memory()
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**24)  # 128 MiB, more than glibc ever keeps by itself
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_memory_that_was_used_is_not_asked_of_the_system_again() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment["NUMPY_MADVISE_HUGEPAGE"] = "0"  # pages are counted
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", MEASURE, how], env=environment, timeout=120))
        for how in ("kept", "plain")
    }
    assert faults["kept"] < 1000 < faults["plain"]
