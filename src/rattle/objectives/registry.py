"""Every method by the name that recipes give it. One line here adds one; `register_method` does it at run time."""

from rattle.errors import RattleError, unknown
from rattle.objectives import (
    alp,
    at,
    avmixup,
    dkl,
    fat,
    fat_trades,
    free,
    gat,
    gat_trades,
    gowal,
    hat,
    kd_swa,
    label_smoothing,
    lbgat,
    mart,
    mma,
    n_fgsm,
    pang,
    rebat,
    rice,
    rslad,
    s2o_at,
    s2o_trades,
    sota,
    standard,
    trades,
)
from rattle.objectives.base import Method, Objective

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        at.METHOD,
        trades.METHOD,
        standard.METHOD,
        mart.METHOD,
        s2o_at.METHOD,
        s2o_trades.METHOD,
        alp.METHOD,
        label_smoothing.METHOD,
        rice.METHOD,
        pang.METHOD,
        gowal.METHOD,
        sota.METHOD,
        fat.METHOD,
        fat_trades.METHOD,
        avmixup.METHOD,
        gat.METHOD,
        gat_trades.METHOD,
        n_fgsm.METHOD,
        free.METHOD,
        lbgat.METHOD,
        hat.METHOD,
        kd_swa.METHOD,
        rslad.METHOD,
        mma.METHOD,
        rebat.METHOD,
        dkl.METHOD,
    )
}


def register_method(method: Method) -> None:
    """Let recipes name a method of your own: `DATASET-NORM-MODEL-NAME`.

    Its objective must be a dataclass: its fields become settings of recipes and options of the command line.
    """
    if not method.name.replace("-", "").isalnum() or method.name != method.name.lower():
        raise RattleError(f"a method's name is made of lower-case letters, digits and hyphens, got {method.name!r}")
    if method.name.endswith(("-awp", "-sam", "-asam", "-1st", "-2nd", "-released", "-fast")):
        raise RattleError(f"{method.name!r} ends in a suffix that recipes give a meaning to")
    METHODS[method.name] = method


def get_method(name: str) -> Method:
    """The method of that name; a mistyped one is refused with the nearest."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def objective_kinds() -> list[type[Objective]]:
    """The classes of all registered objectives, each once."""
    return list(dict.fromkeys(type(method.objective) for method in METHODS.values()))
