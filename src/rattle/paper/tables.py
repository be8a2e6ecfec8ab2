"""The paper's eight tables as data: every published cell with its recipe, its attack and the epsilon it was run at.

Jin et al., "Randomized Adversarial Training via Taylor Expansion" (CVPR 2023). Plain Python: nothing here needs torch.
"""

from functools import partial

from rattle.errors import RattleError
from rattle.paper.rows import Row, Table, orders, ours

UNSTATED_EPSILON = (
    "The paper states the epsilon of PGD-20 and CW-20 (0.031) for Table 2 alone; the same is assumed here, as in the "
    "authors' release."
)
ONE_DECIMAL = (
    "AutoAttack is printed to one decimal for the authors' own runs, as 1,000 images would give; the authors' release "
    "attacks the first 1,000 test images by default, the paper does not say how many."
)
BEST_OF_CHECKPOINTS = (
    "Each attack's value is the highest over the checkpoints of Appendix B, chosen on the test set; clean accuracy is "
    "that of the checkpoint best under PGD-20. So the cells of a row need not belong to one model."
)
ONE_FOOTING = (
    "Rows of other works were published with their authors' own schedules and settings; ours are trained on one "
    "footing with the other rows (docs/methods/index.md)."
)
FAT_RADIUS = "ours is FAT on TRADES, trained for 8/255; the paper does not say which of its authors' networks it quotes"
NOT_TRADES_GAT = "not the published experiment, whose code was not released: ours is TRADES on GAT's single guided step"
KD_TOO = "the paper's text names SWA alone; ours has its authors' two teachers too (Chen et al. 2021)"
OWN_RUNS = (UNSTATED_EPSILON, ONE_DECIMAL, BEST_OF_CHECKPOINTS)
PREACT = "cifar10-linf-preact18-trades"
WRN, WRN_100 = "cifar10-linf-wrn34-10-trades", "cifar100-linf-wrn34-10-trades"
L2_COLUMNS, RAYS_COLUMNS = ("clean", "pgd20", "autoattack"), ("clean", "adbd", "rays")
transferred = partial(orders, columns=("clean", "pgd20", "cw20"), transfer=True)
ETA_NUMBERS = {  # eta -> order 1, order 2
    0.05: ("83.19 53.98 52.12 48.2", "83.25 54.07 51.93 48.4"),
    0.1: ("82.86 54.29 52.24 49.3", "83.47 54.42 52.28 49.7"),
    0.2: ("83.55 54.86 52.65 48.8", "84.13 54.91 52.53 50.3"),
    0.3: ("83.96 55.05 52.54 49.7", "84.27 54.36 51.80 48.9"),
    0.4: ("83.93 54.65 52.23 48.6", "84.14 54.38 51.56 49.6"),
}

TABLES = {
    1: Table(
        title="The weight eta of the Taylor terms, PreAct ResNet-18 on CIFAR-10, l_inf",
        rows=tuple(
            ours(f"{label} ({eta})", f"{PREACT}-{suffix}", numbers[i], eta=eta)
            for i, (label, suffix) in enumerate((("1st", "1st"), ("1st+2nd", "2nd")))
            for eta, numbers in ETA_NUMBERS.items()
        ),
        notes=(
            "Section 5.3 gives 55.13 (PGD-20) and 50.8 (AutoAttack) for 1st+2nd (0.2); the table has 54.91 and 50.3.",
            "No 0th-order row is printed; Table 7 gives the clean accuracy of TRADES on this network.",
            *OWN_RUNS,
        ),
    ),
    2: Table(
        title="WideResNet-34-10 on CIFAR-10 and CIFAR-100, l_inf, beside the state of the art",
        rows=(
            ours("Lee et al. (2020)", "cifar10-linf-wrn34-10-avmixup", "92.56 59.75 54.53 39.70"),
            ours("Wang et al. (2020)", "cifar10-linf-wrn34-10-mart", "83.51 58.31 54.33 51.10"),
            ours("Rice et al. (2020)", "cifar10-linf-wrn34-20-rice", "85.34 - - 53.42"),
            ours("Zhang et al. (2020)", "cifar10-linf-wrn34-10-fat-trades", "84.52 - - 53.51", note=FAT_RADIUS),
            ours("Pang et al. (2021)", "cifar10-linf-wrn34-20-pang", "86.43 57.91** - 54.39"),
            ours("Jin et al. (2022)", "cifar10-linf-wrn34-20-s2o-trades-awp", "86.01 61.12 57.93 55.90"),
            ours("Gowal et al. (2020)", "cifar10-linf-wrn70-16-gowal", "85.29 58.22* - 57.20"),
            *orders(WRN, "84.65 56.68 54.49 53.0", "85.51 58.34 56.06 54.0", "85.98 58.47 56.13 54.2"),
            *orders(f"{WRN}-awp", "85.17 59.64 57.33 56.2", "86.10 61.47 58.09 57.1", "86.12 61.45 58.22 57.4"),
            ours(
                "Cui et al. (2021)",
                "cifar100-linf-wrn34-10-lbgat",
                "60.43 35.50 31.50 29.34",
                overrides=(("objective.teacher.model", "resnet18"),),
            ),
            ours("Gowal et al. (2020)", "cifar100-linf-wrn70-16-gowal", "60.86 31.47* - 30.03"),
            *orders(WRN_100, "60.22 32.11 28.93 26.9", "63.01 33.26 29.44 28.1", "62.93 33.36 29.61 27.9"),
            *orders(f"{WRN_100}-awp", "60.38 34.09 30.78 28.6", "63.98 35.36 31.63 29.8", "64.71 35.73 31.41 30.2"),
        ),
        notes=(
            "Both results of Gowal et al. (2020) are under PGD-40 and that of Pang et al. (2021) is under PGD-10, "
            "though they stand in the PGD-20 column.",
            ONE_FOOTING,
            "PGD-20 and CW-20 use epsilon 0.031, AutoAttack 8/255: a little more than 0.031.",
            ONE_DECIMAL,
            BEST_OF_CHECKPOINTS,
        ),
    ),
    3: Table(
        title="PreAct ResNet-18 on three datasets, l_2",
        rows=(
            *orders("cifar10-l2-preact18-trades-awp", "87.05 72.08 71.6", "88.41 72.85 72.0", columns=L2_COLUMNS),
            *orders("cifar100-l2-preact18-trades-awp", "62.87 45.11 41.8", "65.59 46.88 42.4", columns=L2_COLUMNS),
            *orders("svhn-l2-preact18-trades-awp", "92.86 72.45 63.8", "93.98 73.07 64.5", columns=L2_COLUMNS),
        ),
        notes=(
            "The epsilon of the l_2 evaluation is not stated; 128/255, that of training, is assumed.",
            ONE_DECIMAL,
            BEST_OF_CHECKPOINTS,
        ),
    ),
    4: Table(
        title="Transfer attacks from a plain adversarially trained surrogate, PreAct ResNet-18, l_inf",
        rows=(
            *transferred("cifar10-linf-preact18-trades-awp", "82.78 61.79 59.42", "84.27 62.56 60.58"),
            *transferred("cifar100-linf-preact18-trades-awp", "58.33 38.55 36.70", "61.08 39.82 37.84"),
            *transferred("svhn-linf-preact18-trades-awp", "93.77 63.80 59.54", "95.11 66.16 63.59"),
        ),
        notes=(UNSTATED_EPSILON, BEST_OF_CHECKPOINTS),
    ),
    5: Table(
        title="VGG16 and MobileNetV2 on CIFAR-10, l_inf",
        rows=(
            *orders("cifar10-linf-vgg16-trades", "79.78 49.88 46.95 44.3", "80.99 50.13 47.09 44.4"),
            *orders("cifar10-linf-vgg16-trades-awp", "78.46 51.19 47.41 46.3", "80.31 52.71 48.38 46.5"),
            *orders("cifar10-linf-mobilenetv2-trades", "79.73 51.41 48.43 46.4", "81.86 53.34 49.93 47.8"),
            *orders("cifar10-linf-mobilenetv2-trades-awp", "79.86 53.56 50.11 47.7", "81.95 55.37 51.55 49.4"),
        ),
        notes=OWN_RUNS,
    ),
    6: Table(
        title="Time per epoch and memory, WideResNet-34-10 on CIFAR-10, batch 128, one NVIDIA A100",
        rows=tuple(orders(WRN, "1666 12875", "2161 20629", "2362 26409", columns=("seconds", "megabytes"))),
    ),
    7: Table(
        title="RayS, the hard-label attack, PreAct ResNet-18 on CIFAR-10, l_inf",
        rows=(
            ours("TRADES", PREACT, "82.89 0.0412 56.06", columns=RAYS_COLUMNS),
            ours("TRADES+1st+2nd", f"{PREACT}-2nd", "84.13 0.0435 57.03", columns=RAYS_COLUMNS),
        ),
        notes=(
            "ADBD is a mean l_inf distance in [0, 1] units although the caption gives per cent for all columns.",
            "The epsilon of the RayS accuracy is not stated; 0.031, usual for RayS on CIFAR-10, is assumed.",
        ),
    ),
    8: Table(
        title="On plain adversarial training, beside GAT and HAT, ResNet-18 on CIFAR-10, l_inf",
        rows=(
            ours("AT", "cifar10-linf-resnet18-at", "82.41 52.77 50.43 47.1"),
            ours("AT+1st+2nd", "cifar10-linf-resnet18-at-2nd", "83.56 54.23 52.19 48.7"),
            ours("GAT", "cifar10-linf-resnet18-gat", "80.49 53.13 - 47.3"),  # Sriramanan et al. (2020)
            ours("TRADES+GAT", "cifar10-linf-resnet18-gat-trades", "81.32 53.37 - 49.6", note=NOT_TRADES_GAT),
            ours("HAT", "cifar10-linf-resnet18-hat", "84.90 49.08+ - -"),  # Rade and Moosavi-Dezfooli (2022)
            ours("HAT(DDPM)", "cifar10-linf-resnet18-hat", "86.86 57.09+ - -", extra=True),
        ),
        notes=(
            "HAT and HAT(DDPM): 49.08 and 57.09 stand under PGD-20, but their authors report both as "
            "AutoAttack accuracy.",
            ONE_FOOTING,
            "The caption says ResNet-18, Appendix B lists only the PreAct variant.",
            *OWN_RUNS,
        ),
    ),
}

SWA_COMPARISON = Table(
    title="Section 5.3: stochastic weight averaging (Chen et al.) beside the paper's method, CIFAR-10, l_inf",
    rows=(
        ours("SWA", "cifar10-linf-resnet18-kd-swa", "- 52.14 - 49.44", note=KD_TOO),  # Chen et al. (2020)
        ours("1st+2nd (0.2)", f"{PREACT}-2nd", "- 55.13 - 50.8", eta=0.2),
    ),
    notes=(
        "The text refers to Table 1 for 55.13 and 50.8, but Table 1 has 54.91 and 50.3 in that row.",
        "SWA's numbers are for ResNet-18, the paper's own for PreAct ResNet-18.",
    ),
)


def table(number: int) -> Table:
    """Table 1 to 8 of the paper.

    >>> table(2).rows[-1].cell("autoattack").value
    30.2
    """
    if number not in TABLES:
        raise RattleError(f"the paper has no Table {number}; its tables are numbered 1 to 8")
    return TABLES[number]


def published(recipe: str) -> list[tuple[int, Row]]:
    """Every row of the eight tables that a recipe reproduces, with the number of its table.

    >>> [number for number, _ in published("cifar10-linf-preact18-trades")]
    [7]
    """
    found = []
    for number, each in TABLES.items():
        found += [(number, row) for row in each.rows if row.recipe == recipe and not row.extra]
    return found
