"""What the Taylor terms and AWP cost: the training steps of `rattle bench` alone, interleaved, with every option of it.

python benchmarks/taylor_cost.py --model preact18 --width 16 --batch 32 --rounds 3
"""

from __future__ import annotations

import sys

from rattle.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "--parts", "training", *sys.argv[1:]]))
