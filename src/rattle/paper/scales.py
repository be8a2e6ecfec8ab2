"""At which size a table of the paper is reproduced: full as published, small on one machine, tiny on the digits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rattle.attacks import Attack
from rattle.attacks.registry import get_attack
from rattle.paper.rows import ARCHITECTURES, Cell, Overrides, parts_of
from rattle.recipes.catalog import get_recipe
from rattle.recipes.recipe import Recipe
from rattle.recipes.schema import replace_at
from rattle.settings import Count, check_settings
from rattle.threat import Threat
from rattle.weights import SWA

COSTLY = ("autoattack", "rays")  # run on one checkpoint only, and on fewer images


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetup:
    """The training steps that Table 6 measures, on generated images of 32x32."""

    model: str = "wrn34-10"
    width: int | None = None  # channels of its first stage; the published width when None
    batch: int = 128
    steps: int = 10  # of the inner attack
    rounds: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What replaces the paper's data, networks and lengths; None leaves them as published."""

    name: str
    description: str  # what replaces what, for the table's notes
    seeds: tuple[int, ...] = (0, 1, 2)
    dataset: str | None = None  # replaces every dataset
    sources: Mapping[str, str] = field(default_factory=dict)  # dataset -> a file or folder that holds it
    root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    extra: str | None = None  # FILE.npz of generated images, for the rows that were trained on such
    models: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)  # network -> (its replacement, width)
    epochs: Count | None = None
    train_size: Count | None = None
    n: Count | None = None  # test images that are attacked; all when None
    autoattack_n: Count | None = 1000  # test images for AutoAttack, as many as in the authors' release
    rays_n: Count | None = None  # test images for RayS
    queries: int = 10_000  # of RayS, for each image
    autoattack: str = "autoattack"  # or smoke-ensemble, where the whole would take longer than the training
    published_epsilon: bool = True  # attack at the paper's epsilon; else at the one trained for
    cost: StepSetup = StepSetup()  # what Table 6 measures

    def __post_init__(self) -> None:
        check_settings(self, "")

    @property
    def note(self) -> str:
        """What was run, for a reader of the table: what replaces what, and the sizes that are not the paper's."""
        counts = {"training images": self.train_size, "epochs": self.epochs, "test images": self.n}
        for attack in COSTLY:
            counts[f"test images for {self.name_of(attack)}"] = self.images(attack)
        sizes = "".join(f", {count:,} {what}" for what, count in counts.items() if count is not None)
        radius = "the published epsilon" if self.published_epsilon else "the epsilon trained for"
        which = "the first of the test set, as in the authors' release"
        return f"{self.description} Here: attacks at {radius}{sizes}: {which}."

    def recipe(self, name: str, overrides: Overrides = ()) -> Recipe:
        """The recipe of that name at this scale, with the paper's schedule of checkpoints."""
        dataset, norm, model, method = parts_of(name)
        replacement, width = self.models.get(model, (model, None))
        recipe = get_recipe(f"{self.dataset or dataset}-{norm}-{replacement}-{method}")
        source = self.sources.get(recipe.data.name, recipe.data.name)
        images = replace(recipe.data, name=source, root=self.root, train_size=self.train_size)
        recipe = replace(recipe, data=images, width=width or recipe.width, keep_checkpoints="paper")
        if self.epochs is not None:
            if recipe.awp:
                warmup = round(recipe.awp.warmup * self.epochs / recipe.epochs)
                recipe = replace(recipe, awp=replace(recipe.awp, warmup=warmup))
            recipe = replace(recipe, epochs=self.epochs)
        for setting, value in overrides:
            teacher = self.models.get(str(value)) if setting.endswith(".model") else None
            if teacher:  # the network of a teacher is this scale's too
                recipe = replace_at(recipe, setting, teacher[0])
                recipe = replace_at(recipe, setting.replace(".model", ".width"), teacher[1])
            else:
                recipe = replace_at(recipe, setting, SWA() if value == "SWA" else value)
        return recipe

    def attack(self, cell: Cell, recipe: Recipe) -> Attack:
        """The attack of a cell."""
        threat = recipe.attack.threat
        if self.published_epsilon and cell.epsilon is not None:
            threat = Threat(norm=threat.norm, epsilon=cell.epsilon)
        attack: Any = get_attack(self.name_of(cell.attack), threat)
        return replace(attack, queries=self.queries) if cell.attack == "rays" else attack

    def name_of(self, attack: str) -> str:
        """What is run for an attack of the paper."""
        return self.autoattack if attack == "autoattack" else attack

    def images(self, attack: str) -> int | None:
        """How many test images an attack is run on."""
        fewer = {"autoattack": self.autoattack_n, "rays": self.rays_n}.get(attack)
        return min(self.n or fewer, fewer) if fewer else self.n


SMALL_NETWORKS = {"preact18": ("cnn-slim", 16), "resnet18": ("cnn-slim", 16), "wrn34-10": ("wrn10-1", 8)}
SMALL_NETWORKS |= dict.fromkeys(("wrn34-20", "wrn70-16"), SMALL_NETWORKS["wrn34-10"])
SMALL_NETWORKS |= {"vgg16": ("vgg16", 8), "mobilenetv2": ("mobilenetv2", 8)}
SCALES = {
    "full": Scale(name="full", description="Full scale: the paper's settings."),
    "small": Scale(
        name="small",
        description="Small scale: slim networks, fewer images, shorter runs. "
        "The absolute figures are not comparable with the paper's; differences between rows are the thing to read.",
        models=SMALL_NETWORKS,
        epochs=30,
        train_size=10_000,
        n=1000,
        cost=StepSetup(width=2, batch=32),
    ),
    "tiny": Scale(
        name="tiny",
        description="Tiny scale: 8x8 digits and a small CNN stand in for every dataset and network; it shows that "
        "everything runs and says nothing about the paper's figures. smoke-ensemble is not AutoAttack: "
        "it has a tenth of its steps, and is an upper bound on what the whole leaves.",
        seeds=(0,),
        dataset="digits",
        models=dict.fromkeys(ARCHITECTURES, ("cnn", 8)),
        epochs=12,
        n=200,
        autoattack="smoke-ensemble",
        rays_n=50,
        queries=1000,
        published_epsilon=False,
        cost=StepSetup(model="cnn-slim", batch=32),
    ),
}
