"""`python -m rattle`, which is what torchrun starts."""

import sys

from rattle.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
