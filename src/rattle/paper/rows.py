"""What a table of the paper is made of: cells, rows and tables, and how a row is written down.

Numbers are stored as printed, so that 51.80 and 53.0 have the precision they were published with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

EIGHT = 8 / 255  # the l_inf radius of training and of AutoAttack (Section 5; caption of Table 2)
ROUNDED = 0.031  # the l_inf radius of PGD-20 and CW-20 (caption of Table 2)
L2_RADIUS = 128 / 255  # the l_2 radius of training (Section 5)

Unit = Literal["%", "distance", "s", "MB"]
PaperNorm = Literal["linf", "l2"]
Overrides = tuple[tuple[str, float | str], ...]  # (setting of a recipe, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One published number."""

    column: str  # a key of COLUMNS
    attack: str  # what is run for it
    printed: str  # the digits as published, "-" where the paper has none
    epsilon: float | None = None  # radius of the attack; None where nothing is attacked
    unit: Unit = "%"
    published_under: str = ""  # what the published number was measured by, where that is not `attack`
    surrogate: str | None = None  # recipe of the model the attack was made on, for transfer (Table 4)

    @property
    def value(self) -> float | None:
        return None if self.printed == "-" else float(self.printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method on one dataset and network, with its published cells."""

    method: str  # the paper's label
    recipe: str | None  # ours; None for results that the paper quotes from elsewhere and we cannot train
    architecture: str
    dataset: str
    norm: PaperNorm
    cells: tuple[Cell, ...]
    overrides: Overrides = ()  # settings that differ from the recipe's
    extra: bool = False  # published with generated images beside the dataset's own
    note: str = ""

    @property
    def baseline(self) -> str | None:
        """The recipe that this row is compared with: without Taylor terms and SWA; None for baselines themselves."""
        if "average" in dict(self.overrides):
            return self.recipe
        stem = (self.recipe or "").removesuffix("-1st").removesuffix("-2nd")
        return None if stem in ("", self.recipe) else stem

    @property
    def surrogate(self) -> str | None:
        """The recipe of the model that transfer attacks are made on."""
        return next((cell.surrogate for cell in self.cells if cell.surrogate), None)

    def cell(self, column: str) -> Cell:
        return {cell.column: cell for cell in self.cells}[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the paper, or the comparison in the text of Section 5.3."""

    title: str  # in our words
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


# Column -> what is run, its unit, and its epsilon under l_inf; under l_2 every attack has the radius of training.
COLUMNS: dict[str, tuple[str, Unit, float | None]] = {
    "clean": ("clean", "%", None),
    "pgd20": ("pgd20", "%", ROUNDED),
    "cw20": ("cw20", "%", ROUNDED),
    "autoattack": ("autoattack", "%", EIGHT),
    "adbd": ("rays", "distance", None),
    "rays": ("rays", "%", ROUNDED),
    "seconds": ("cost", "s", None),
    "megabytes": ("cost", "MB", None),
}
# Table 2's footnote; the last is ours, for numbers that their authors report as AutoAttack's.
MARKS = {"**": "pgd10", "*": "pgd40", "+": "autoattack"}
WHITE_BOX = ("clean", "pgd20", "cw20", "autoattack")
PAPER_DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}
ARCHITECTURES = {
    "preact18": "PreAct ResNet-18",
    "wrn34-10": "WRN-34-10",
    "wrn34-20": "WRN-34-20",
    "wrn70-16": "WRN-70-16",
    "vgg16": "VGG16",
    "mobilenetv2": "MobileNetV2",
    "resnet18": "ResNet-18",
}


def read_cell(column: str, text: str, norm: PaperNorm, surrogate: str | None = None) -> Cell:
    """A cell from its printed text; marks say that the number belongs to another attack."""
    printed = text.rstrip("*+")
    attack, unit, epsilon = COLUMNS[column]
    return Cell(
        column=column,
        attack=attack,
        printed=printed,
        published_under=MARKS.get(text.removeprefix(printed), ""),
        epsilon=L2_RADIUS if epsilon and norm == "l2" else epsilon,
        unit=unit,
        surrogate=surrogate if attack != "clean" else None,
    )


def parts_of(recipe: str) -> tuple[str, PaperNorm, str, str]:
    """Dataset, norm, network and method, which make up the name of a recipe.

    >>> parts_of("cifar10-linf-wrn34-10-trades-awp")
    ('cifar10', 'linf', 'wrn34-10', 'trades-awp')
    """
    dataset, norm, rest = recipe.split("-", 2)
    model = next(name for name in ARCHITECTURES if rest.startswith(name))
    return dataset, "l2" if norm == "l2" else "linf", model, rest.removeprefix(f"{model}-")


def ours(
    method: str,
    recipe: str,
    numbers: str,
    *,
    columns: Sequence[str] = WHITE_BOX,
    eta: float = 0,
    transfer: bool = False,
    overrides: Overrides = (),
    extra: bool = False,
    note: str = "",
) -> Row:
    """A row that a recipe reproduces, perhaps at another eta; dataset, norm and network follow from the recipe's name.

    `transfer`: attacks are made on the plain adversarially trained model of the same setting. `note`: what a reader
    must know who compares ours with the published row. `extra`: it takes generated images too.
    """
    dataset, norm, model, _ = parts_of(recipe)
    surrogate = f"{dataset}-{norm}-{model}-at" if transfer else None
    return Row(
        method=method,
        recipe=recipe,
        architecture=ARCHITECTURES[model],
        dataset=dataset,
        norm=norm,
        cells=tuple(read_cell(c, text, norm, surrogate) for c, text in zip(columns, numbers.split(), strict=True)),
        overrides=(("objective.taylor.eta", eta),) if eta else overrides,
        extra=extra,
        note=note,
    )


def orders(base: str, *numbers: str, columns: Sequence[str] = WHITE_BOX, transfer: bool = False) -> list[Row]:
    """A 0th-order baseline and the paper's method on it: two lines of numbers give 0th and 2nd, three add the 1st."""
    zeroth = "Wu et al. (2020) (0th)" if base.endswith("-awp") else "Zhang et al. (2019) (0th)"
    labels = {"": zeroth, "-1st": "+ Ours (1st)", "-2nd": "+ Ours (1st+2nd)"}
    suffixes = ("", "-2nd") if len(numbers) == 2 else ("", "-1st", "-2nd")
    return [
        ours(labels[suffix], base + suffix, line, columns=columns, transfer=transfer)
        for suffix, line in zip(suffixes, numbers, strict=True)
    ]
