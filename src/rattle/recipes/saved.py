"""Recipes saved by versions 0.1 and 0.2, in the present form.

A setting that is no longer there is dropped where it had its default; a run with another value is refused.
"""

from copy import deepcopy
from typing import Any

from rattle.errors import RattleError
from rattle.objectives.readings import READINGS
from rattle.objectives.registry import objective_kinds
from rattle.recipes.schedules import CYCLE_END

RENAMED = {"keep": "keep_checkpoints", "draws": "noise_samples"}
REMOVED: dict[str, Any] = {  # setting -> its default, which a run did not notice
    "data.in_memory_limit": 4.0,
    "attack.box_first": False,
    "awp.climbs": "loss",
    "awp.decay": 0.0,
    "awp.eta": 0.01,
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
REMOVED_OF: dict[str, dict[str, Any]] = {  # kind of objective -> its setting -> the default
    "FAT": {"stop": {"raise_at": [50 / 120, 90 / 120], "omega": 0.001}},
    "FATTrades": {"stop": {"raise_at": [30 / 85, 50 / 85, 70 / 85], "omega": 0.0}, "clean_weight": "one"},
    "GATTrades": {"clean_weight": "one"},
    "Gowal": {"hold_clean": True, "clean_weight": "one"},
    "HAT": {"h": 2.0},
    "KD": {"smoothing": 0.0},
    "MMA": {"search_steps": 10},
    "Mart": {"offset": 1e-4},
    "Trades": {"clean_weight": "one"},
    "Wang2023": {"hold_clean": False, "clean_weight": "one"},
}
REMOVED_MODES = ("released", "trace", "head-noise")  # of objective.taylor; a published model has head in their place
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
        plain["objective"] = with_weight(with_taylor(renamed_kind(objective)), any_value=any_value)
    if isinstance(noise := plain.get("noise"), dict):
        plain["noise"] = one_sigma(noise)
    if plain.get("tf32") is True and plain.get("precision", "fp32") == "fp32":
        plain["tf32"], plain["precision"] = False, "tf32"
    plain["keep_checkpoints"] = which_epochs(plain.get("keep_checkpoints"))
    for setting, default in {**REMOVED, **dependent_defaults(plain)}.items():
        drop(plain, setting, default, any_value=any_value)
    taylor = part_of(plain, ["objective", "taylor"]) or {}
    if taylor.get("mode") in REMOVED_MODES and taylor["mode"] not in READINGS:
        if not any_value:
            raise removed("objective.taylor.mode", taylor["mode"])
        taylor["mode"] = "head"
    return plain


def openable(plain: Any) -> Any:
    """A recipe in the present form for a model that is opened, not trained: its objective may be unknown here."""
    objective = plain.get("objective") if isinstance(plain, dict) else None
    if not isinstance(objective, dict) or objective.get("kind") in {kind.__name__ for kind in objective_kinds()}:
        return plain
    return {**plain, "objective": {"kind": "Foreign", "name": str(objective.get("kind"))}, "noise_samples": 1}


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
    kind = (part_of(plain, ["objective"]) or {}).get("kind")
    found = {
        "noise.where": "convolutions" if kind == "Released" else "matrices",
        "val_attack.threat": (part_of(plain, ["attack"]) or {}).get("threat"),
        "schedule.last": CYCLE_END.get((part_of(plain, ["schedule"]) or {}).get("shape", "linear")),
    }
    for name, default in REMOVED_OF.get(str(kind), {}).items():
        found[f"objective.{name}"] = default
    return found


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


def one_sigma(noise: dict[str, Any]) -> dict[str, Any]:
    """The noise without `outer`, which set the sigma of the outer step beside that of the inner one."""
    rest = {key: value for key, value in noise.items() if key != "outer"}
    if noise.get("outer") is None:
        return rest
    if rest.get("inner") is None:
        rest["inner"] = noise.get("sigma", 0.01)
    return {**rest, "sigma": noise["outer"]}


def renamed_kind(objective: dict[str, Any]) -> dict[str, Any]:
    """An objective with a kind for the method `sota`, which shared Gowal's, and FAT's tau among its own settings."""
    objective = dict(objective)
    if objective.get("kind") == "Gowal" and objective.get("hold_clean") is False:
        objective["kind"] = "Wang2023"
    if isinstance(stop := objective.get("stop"), dict) and "tau" in stop:
        objective["tau"] = stop.pop("tau")
    return objective


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
