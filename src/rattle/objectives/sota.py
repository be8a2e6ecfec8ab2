"""The public state of the art (Wang et al. 2023): Gowal's TRADES on generated images, with smoothed labels."""

from dataclasses import replace

from rattle.objectives import gowal
from rattle.objectives.gowal import Gowal

METHOD = replace(
    gowal.METHOD,
    objective=Gowal(inv_lambda=5.0, smoothing=0.1, hold_clean=False),
    length=2.0,
    settings={
        **gowal.METHOD.settings,
        "schedule": {"kind": "OneCycle", "shape": "cosine", "peak": 0.025},
        "data.extra_fraction": 0.7,  # which asks for --data.extra
    },
)
