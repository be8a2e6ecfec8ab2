"""Recipes saved by versions 0.1 and 0.2, in the present form.

A setting that is no longer there is dropped where it had its default; a run with another value is refused.
"""

from copy import deepcopy
from typing import Any

from rattle.errors import RattleError
from rattle.objectives.readings import READINGS
from rattle.recipes.schedules import CYCLE_END

RENAMED = {"keep": "keep_checkpoints", "draws": "noise_samples"}
REMOVED: dict[str, Any] = {  # setting -> its default, which a run did not notice
    "data.in_memory_limit": 4.0,
    "attack.box_first": False,
    "awp.climbs": "loss",
    "awp.decay": 0.0,
    "awp.eta": 0.01,
    "objective.search_steps": 10,
    "objective.taylor.mass": None,
    "objective.taylor.second_factor": 0.5,
    "objective.taylor.second_value": "squared",
    "objective.taylor.share": 1.0,
    "objective.taylor.statistics": "ca",
    "objective.taylor.temperature": 1.0,
    "on_divergence": "stop",
    "optimizer.eps": 1e-8,
    "schedule.first": 0.04,
    "schedule.floor": 0.0,
    "tf32": False,
    "val_attack.box_first": False,
    "val_attack.loss": "ce",
    "val_attack.restarts": 1,
    "val_attack.start": "uniform",
}
REMOVED_VALUES = {  # setting -> values that are gone, and what a published model has in their place
    "noise.where": (("conv-names",), "convolutions"),
    "objective.taylor.mode": (("released", "trace", "head-noise"), "head"),
}
TAYLOR = ("order", "eta", "mode", "second_factor")  # settings that version 0.1 had among the objective's own
GUIDE = {"late_factor": 4.0, "late_from": 0.86, "noise": 0.5, "step": 1.0}  # of GAT in 0.2, beside its weight
PAPER_EPOCHS = {"drops": [0.5, 0.75], "dense": 0.05, "sparse": 0.025}  # keep_checkpoints in 0.2


def upgraded(plain: Any, *, any_value: bool = False) -> Any:
    """A saved recipe in the present form.

    any_value: drop removed settings whatever they were, for models that were published to be used, not trained on.
    `method` is there for readers of the file; it follows from the other settings.
    """
    if not isinstance(plain, dict):
        return plain
    plain = {RENAMED.get(key, key): value for key, value in deepcopy(plain).items() if key != "method"}
    for name, only in {"optimizer": "SGD", "awp": "AWP"}.items():  # version 0.1 had no other
        if isinstance(settings := plain.get(name), dict) and "kind" not in settings:
            plain[name] = {"kind": only, **settings}
    if isinstance(objective := plain.get("objective"), dict):
        plain["objective"] = with_weight(with_taylor(objective), any_value=any_value)
    if plain.get("tf32") is True and plain.get("precision", "fp32") == "fp32":
        plain["tf32"], plain["precision"] = False, "tf32"
    plain["keep_checkpoints"] = which_epochs(plain.get("keep_checkpoints"))
    for setting, default in {**REMOVED, **dependent_defaults(plain)}.items():
        drop(plain, setting, default, any_value=any_value)
    for setting, (gone, instead) in REMOVED_VALUES.items():
        *parents, name = setting.split(".")
        part = part_of(plain, parents)
        if part is not None and part.get(name) in gone and part[name] not in READINGS:
            if not any_value:
                raise removed(setting, part[name])
            part[name] = instead
    return plain


def part_of(plain: dict[str, Any], parents: list[str]) -> dict[str, Any] | None:
    """The settings below these names; None if there are none."""
    part: Any = plain
    for parent in parents:
        part = part.get(parent) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else None


def removed(setting: str, value: Any) -> RattleError:
    return RattleError(f"{setting} {value} was removed after version 0.2: use rattle 0.2 for this run")


def drop(plain: dict[str, Any], setting: str, default: Any, *, any_value: bool) -> None:
    """Take a setting out of a recipe; raises RattleError if its value was another than the default."""
    *parents, name = setting.split(".")
    part = part_of(plain, parents)
    if part is None or name not in part:
        return
    value = part.pop(name)
    if value != default and not any_value:
        raise removed(setting, value)


def dependent_defaults(plain: dict[str, Any]) -> dict[str, Any]:
    """Removed settings whose value now follows from another one."""
    attack, schedule, objective = plain.get("attack"), plain.get("schedule"), plain.get("objective")
    shape = schedule.get("shape", "linear") if isinstance(schedule, dict) else "linear"
    trades = isinstance(objective, dict) and isinstance(objective.get("clean_weight"), str)  # MMA's is a number
    return {
        **({"objective.clean_weight": "one"} if trades else {}),
        "val_attack.threat": attack.get("threat") if isinstance(attack, dict) else None,
        "schedule.last": CYCLE_END.get(shape),
    }


def which_epochs(kept: Any) -> Any:
    """keep_checkpoints: version 0.2 had a schedule of three settings, or none."""
    if kept is None:
        return "none"
    if not isinstance(kept, dict):
        return kept
    settings = {**PAPER_EPOCHS, **kept}
    if settings == PAPER_EPOCHS:
        return "paper"
    return "all"  # a run that kept some of its epochs opens; one that is resumed keeps the rest of them too


def with_taylor(objective: dict[str, Any]) -> dict[str, Any]:
    """An objective with its Taylor settings in a part of their own; at order 0 they had no effect."""
    if "order" not in objective or "taylor" in objective:
        return objective
    rest = {key: value for key, value in objective.items() if key not in TAYLOR}
    if objective["order"] == 0:
        return rest
    return {**rest, "taylor": {key: objective[key] for key in TAYLOR if key in objective}}


def with_weight(objective: dict[str, Any], *, any_value: bool) -> dict[str, Any]:
    """An objective with the weight of GAT's guide among its own settings."""
    guide = objective.get("guide")
    if not isinstance(guide, dict):
        return objective
    rest = {key: value for key, value in objective.items() if key != "guide"}
    others = {key: value for key, value in guide.items() if key != "weight"}
    if {**GUIDE, **others} != GUIDE and not any_value:
        raise removed("objective.guide", others)
    return {**rest, "weight": guide.get("weight", 10.0)}
