"""`python -m rattle`, which is what torchrun starts."""

import sys

from rattle.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
