"""Every method by the name that recipes give it. One line here adds one; `register_method` does it at run time.

Imports no torch: a method's own file is imported when the method is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rattle.errors import RattleError
from rattle.registry import Entry, Registry

if TYPE_CHECKING:
    from rattle.objectives.base import Method, Objective

Group = Literal["paper", "rows", "cheap", "taught", "other"]
METHOD_GROUPS: dict[Group, str] = {  # group -> its heading in `rattle recipes`
    "paper": "The paper's bases, on which it puts its Taylor terms",
    "rows": "The other rows of the paper's tables",
    "cheap": "Cheap inner loops",
    "taught": "Distillation",
    "other": "Further objectives",
}
METHOD_SUFFIXES = ("-awp", "-sam", "-asam", "-1st", "-2nd", "-released", "-fast")  # what recipes add to a method's name
WITH_AWP, WITH_TAYLOR = ("-awp",), ("-1st", "-2nd")  # those that not every method has
BOTH = WITH_AWP + WITH_TAYLOR

METHODS: Registry[Method] = Registry(
    "method",
    {
        "at": Entry(".at:METHOD", "plain adversarial training", "Madry et al. 2018", "paper", BOTH),
        "trades": Entry(
            ".trades:METHOD", "CE on clean images, KL to adversarial ones", "Zhang et al. 2019", "paper", BOTH
        ),
        "standard": Entry(".standard:METHOD", "no adversary: a baseline, and a teacher", "no defence", "other", ()),
        "mart": Entry(".mart:METHOD", "TRADES, harder on misclassified images", "Wang et al. 2020", "rows", BOTH),
        "s2o-at": Entry(".s2o_at:METHOD", "AT with second-order statistics", "Jin et al. 2022", "rows", BOTH),
        "s2o-trades": Entry(
            ".s2o_trades:METHOD", "TRADES with second-order statistics", "Jin et al. 2022", "rows", BOTH
        ),
        "alp": Entry(
            ".alp:METHOD", "the logits of x and x' pulled together", "Kannan et al. 2018", "other", WITH_TAYLOR
        ),
        "label-smoothing": Entry(
            ".label_smoothing:METHOD", "AT with smoothed labels", "Pang et al. 2021", "other", BOTH
        ),
        "rice": Entry(".rice:METHOD", "AT, stopped before it overfits", "Rice et al. 2020", "rows", BOTH),
        "pang": Entry(".pang:METHOD", "TRADES in the bag of tricks' settings", "Pang et al. 2021", "rows", BOTH),
        "gowal": Entry(".gowal:METHOD", "TRADES with SiLU and averaged weights", "Gowal et al. 2020", "rows", BOTH),
        "sota": Entry(".sota:METHOD", "Gowal's TRADES on generated images", "Wang et al. 2023", "other", BOTH),
        "fat": Entry(
            ".fat:METHOD", "AT, each attack stopped when it succeeds", "Zhang et al. 2020", "rows", WITH_TAYLOR
        ),
        "fat-trades": Entry(".fat_trades:METHOD", "TRADES with FAT's attack", "Zhang et al. 2020", "rows", WITH_TAYLOR),
        "avmixup": Entry(".avmixup:METHOD", "images and soft labels beyond x'", "Lee et al. 2020", "rows", ()),
        "gat": Entry(
            ".gat:METHOD", "one step, guided by the clean softmax", "Sriramanan et al. 2020", "rows", WITH_TAYLOR
        ),
        "gat-trades": Entry(
            ".gat_trades:METHOD", "TRADES with GAT's one step", "Sriramanan et al. 2020", "rows", WITH_TAYLOR
        ),
        "n-fgsm": Entry(
            ".n_fgsm:METHOD", "AT with one step from strong noise", "de Jorge et al. 2022", "cheap", WITH_TAYLOR
        ),
        "e-at": Entry(".e_at:METHOD", "AT in l_inf or l_1, by minibatch", "Croce and Hein 2022", "other", WITH_TAYLOR),
        "free": Entry(".free:METHOD", "AT by replayed minibatches", "Shafahi et al. 2019", "cheap", WITH_TAYLOR),
        "lbgat": Entry(
            ".lbgat:METHOD", "guided by a clean network trained along", "Cui et al. 2021", "rows", WITH_TAYLOR
        ),
        "hat": Entry(".hat:METHOD", "TRADES with helper points", "Rade and Moosavi-Dezfooli 2022", "rows", WITH_TAYLOR),
        "kd-swa": Entry(
            ".kd_swa:METHOD", "AT with two teachers and averaged weights", "Chen et al. 2021", "rows", WITH_TAYLOR
        ),
        "rslad": Entry(".rslad:METHOD", "a robust teacher's soft labels", "Zi et al. 2021", "taught", ()),
        "mma": Entry(".mma:METHOD", "every image attacked up to its boundary", "Ding et al. 2020", "other", ()),
        "rebat": Entry(
            ".rebat:METHOD", "AT near the average of its own weights", "Wang et al. 2023", "other", WITH_TAYLOR
        ),
        "dkl": Entry(".dkl:METHOD", "TRADES' divergence taken apart, reweighted", "Cui et al. 2023", "other", BOTH),
    },
    package="rattle.objectives",
    points="rattle.methods",
)


def register_method(name: str, method: Method, *, summary: str = "", paper: str = "", group: Group = "other") -> None:
    """Let recipes name a method of your own: `DATASET-NORM-MODEL-NAME`.

    name: lower-case letters, digits and hyphens. method: its objective must be a dataclass, whose fields become
    settings of recipes and options of the command line. summary, paper, group: what `rattle recipes` lists.
    """
    if not name.replace("-", "").isalnum() or name != name.lower():
        raise RattleError(f"a method's name is made of lower-case letters, digits and hyphens, got {name!r}")
    if name.endswith(METHOD_SUFFIXES):
        raise RattleError(f"{name!r} ends in a suffix with a meaning in recipes")
    METHODS.add(name, method, Entry(summary=summary, paper=paper, group=group))


def get_method(name: str) -> Method:
    """The method of that name; a mistyped one is refused with the nearest."""
    METHODS.entry(name)
    return METHODS[name]


def variants_of(name: str) -> tuple[str, ...]:
    """The suffixes that recipes may add to a method's name, of those that not every method has."""
    variants = METHODS.entry(name).variants
    if variants is None:
        method = METHODS[name]
        awp = WITH_AWP if method.awp is not None else ()
        variants = awp + WITH_TAYLOR if hasattr(method.objective, "taylor") else awp
    return variants


def objective_kinds() -> list[type[Objective]]:
    """The classes of all registered objectives of the authors' release, and of those unknown, each once."""
    from rattle.objectives.base import Foreign
    from rattle.objectives.trades import Released

    kinds = [type(method.objective) for method in METHODS.values()]
    return list(dict.fromkeys([*kinds, Released, Foreign]))
