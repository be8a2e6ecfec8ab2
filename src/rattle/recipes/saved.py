"""Recipes saved by versions 0.1 and 0.2, in the present form.

A setting that is no longer there is dropped where it had its default. A run with another value still opens, but is not
trained further.
"""

from copy import deepcopy
from typing import Any

from rattle.errors import RattleError
from rattle.objectives.readings import READINGS
from rattle.objectives.registry import objective_kinds
from rattle.recipes.schedules import CYCLE_END
from rattle.settings import Plain

REMOVED: Plain = {  # setting -> its default, which a run did not notice
    "data.in_memory_limit": 4.0,
    "attack.box_first": False,
    "awp.climbs": "loss",
    "awp.decay": 0.0,
    "awp.eta": 0.01,
    "keep": None,
    "noise.outer": None,
    "noise.where": "matrices",
    "objective.taylor.antithetic": False,
    "objective.taylor.mass": None,
    "objective.taylor.second_factor": 0.5,
    "objective.taylor.second_value": "squared",
    "objective.taylor.share": 1.0,
    "objective.taylor.statistics": "ca",
    "objective.taylor.temperature": 1.0,
    "on_divergence": "stop",
    "optimizer.betas": [0.9, 0.999],
    "optimizer.eps": 1e-8,
    "schedule.first": 0.04,
    "schedule.floor": 0.0,
    "tf32": False,
    "val_attack.box_first": False,
    "val_attack.loss": "ce",
    "val_attack.restarts": 1,
    "val_attack.start": "uniform",
}
GUIDE = {"weight": 10.0, "late_factor": 4.0, "late_from": 0.86, "noise": 0.5, "step": 1.0}
REMOVED_OF: dict[str, Plain] = {  # kind of objective -> its setting -> the default
    "FAT": {"stop": {"tau": 0, "raise_at": [50 / 120, 90 / 120], "omega": 0.001}},
    "FATTrades": {"stop": {"tau": 0, "raise_at": [30 / 85, 50 / 85, 70 / 85], "omega": 0.0}, "clean_weight": "one"},
    "GAT": {"guide": GUIDE},
    "GATTrades": {"guide": GUIDE, "clean_weight": "one"},
    "Gowal": {"hold_clean": True, "clean_weight": "one"},
    "HAT": {"h": 2.0},
    "KD": {"smoothing": 0.0},
    "MMA": {"search_steps": 10},
    "Mart": {"offset": 1e-4},
    "Trades": {"clean_weight": "one"},
    "Wang2023": {"hold_clean": False, "clean_weight": "one"},
}
REMOVED_MODES = ("released", "trace", "head-noise")  # of objective.taylor
TAYLOR_SETTINGS = ("order", "eta", "mode", "second_factor")  # settings that version 0.1 had among the objective's own


def upgraded(plain: Any, *, to_open: bool = False) -> Any:
    """A saved recipe in the present form.

    to_open: for a model that is not trained further: removed settings are dropped whatever they were, and its objective
    may be unknown here.
    """
    if not isinstance(plain, dict):
        return plain
    plain = deepcopy(plain)
    plain.pop("method", None)  # there for readers of the file; it follows from the other settings
    if "draws" in plain:
        plain["noise_samples"] = plain.pop("draws")
    for name, only in {"optimizer": "SGD", "awp": "AWP"}.items():  # version 0.1 had no other
        if part := part_of(plain, name):
            part.setdefault("kind", only)
    if not isinstance(plain.get("keep_checkpoints", "none"), str):  # version 0.2 had a schedule of three settings
        plain["keep"] = plain.pop("keep_checkpoints")

    objective = part_of(plain, "objective")
    if "order" in objective and "taylor" not in objective:
        taylor = {}
        for name in TAYLOR_SETTINGS:
            if name in objective:
                taylor[name] = objective.pop(name)
        if taylor["order"] != 0:  # where they had no effect
            objective["taylor"] = taylor
    if objective.get("kind") == "Gowal" and objective.get("hold_clean") is False:
        objective["kind"] = "Wang2023"  # the method sota
    kind = str(objective.get("kind"))

    defaults = {
        **REMOVED,
        "val_attack.threat": part_of(plain, "attack").get("threat"),
        "schedule.last": CYCLE_END.get(str(part_of(plain, "schedule").get("shape", "linear"))),
    }
    for name, default in REMOVED_OF.get(kind, {}).items():
        defaults[f"objective.{name}"] = default
    for setting, default in defaults.items():
        *parents, name = setting.split(".")
        part = part_of(plain, *parents)
        if name in part:
            value = part.pop(name)
            if value != default and not to_open:
                raise removed(setting, value)

    taylor = part_of(objective, "taylor")
    mode = taylor.get("mode", "head")
    if mode in REMOVED_MODES and mode not in READINGS and not to_open:
        raise removed("objective.taylor.mode", mode)
    if to_open and mode not in list(READINGS):
        taylor["mode"] = "head"
    if to_open and objective and kind not in {known.__name__ for known in objective_kinds()}:
        plain |= {"objective": {"kind": "Foreign", "name": kind}, "noise_samples": 1}
    return plain


def part_of(plain: Plain, *names: str) -> Plain:
    """The settings below these names; empty if there are none."""
    part: Any = plain
    for name in names:
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def removed(setting: str, value: Any) -> RattleError:
    return RattleError(f"{setting} {value} was removed after version 0.2: use rattle 0.2 for this run")
