"""Settings survive YAML, typos never pass, and a recipe's name says what is in it."""

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rattle.attacks import PGD
from rattle.data import Augment
from rattle.data.registry import Data
from rattle.errors import RattleError, unknown
from rattle.objectives import AT, Taylor, Trades
from rattle.recipes.catalog import describe_recipe, get_recipe, resolve
from rattle.recipes.names import list_recipes
from rattle.recipes.recipe import SGD, AdamW, Recipe, ValAttack
from rattle.recipes.schedules import Cosine, OneCycle, Piecewise
from rattle.recipes.schema import parse_number
from rattle.threat import Threat
from rattle.weights import AWP, EMA, SWA, Noise

positive, fraction, counts = st.floats(1e-9, 1e6), st.floats(0.01, 0.99), st.integers(1, 10**6)
taylor = st.builds(Taylor, order=st.sampled_from([1, 2]), eta=st.none() | st.floats(0, 1e6))
recipes = st.builds(
    Recipe,
    name=st.text(max_size=20),
    data=st.builds(Data, name=st.text(max_size=20), augment=st.builds(Augment, flip=st.booleans())),
    width=st.none() | counts,
    attack=st.builds(PGD, threat=st.builds(Threat, epsilon=fraction), loss=st.sampled_from(["ce", "kl", "cw"])),
    objective=st.builds(AT, taylor=taylor) | st.builds(Trades, inv_lambda=positive),
    awp=st.none() | st.builds(AWP, gamma=positive, warmup=st.integers(0, 20)),
    average=st.none() | st.builds(SWA, start=fraction) | st.builds(EMA, decay=fraction, warmup=st.booleans()),
    optimizer=st.builds(SGD, lr=positive, momentum=fraction) | st.builds(AdamW, layer_decay=st.none() | fraction),
    schedule=st.builds(Piecewise, drops=st.lists(fraction, max_size=3).map(tuple))
    | st.builds(Cosine, warmup=fraction)
    | st.builds(OneCycle, peak=fraction),
    epochs=counts,
    val_attack=st.builds(ValAttack, steps=counts),
    keep_checkpoints=st.sampled_from(["none", "paper", "all"]),
    seed=st.integers(0, 2**40),
)


@settings(max_examples=60, deadline=None)
@given(recipes)
def test_a_recipe_survives_yaml(recipe: Recipe) -> None:
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


def test_yaml_says_which_kind_where_several_are_possible() -> None:
    plain = yaml.safe_load(Recipe(objective=AT(taylor=Taylor(order=1)), average=EMA(), awp=AWP()).to_yaml())
    kinds = {name: part["kind"] for name, part in plain.items() if isinstance(part, dict) and "kind" in part}
    parts = {"objective": "AT", "average": "EMA", "schedule": "Piecewise", "awp": "AWP", "optimizer": "SGD"}
    assert kinds == parts
    assert plain["attack"]["threat"] == {"norm": "linf", "epsilon": 8 / 255}
    assert yaml.safe_load(Recipe().to_yaml())["awp"] is None


def edited(changes: dict[str, object]) -> str:
    """A recipe in YAML with settings changed by their dotted names."""
    objective = Trades(taylor=Taylor(order=1, eta=0.3))
    plain = yaml.safe_load(Recipe(objective=objective, awp=AWP(), average=SWA()).to_yaml())
    for path, value in changes.items():
        *groups, last = path.split(".")
        place = plain
        for group in groups:
            place = place[group]
        place[last] = value
    return yaml.safe_dump(plain)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("epoch", 3, "'epoch'; did you mean 'epochs'?"),
        ("objective.taylor.etta", 3, "'objective.taylor.etta'; did you mean 'objective.taylor.eta'?"),
        ("objective.eta", 3, "unknown setting 'objective.eta'"),
        ("attack.threat.eps", 0.1, "did you mean 'attack.threat.epsilon'?"),
        ("objective.kind", "Trade", "did you mean 'Trades'?"),
        ("average.kind", "None", "unknown average.kind 'None'"),
        ("optimizer.kind", "Adam", "did you mean 'AdamW'?"),
        ("schedule.drops", ["early"], "schedule.drops[0] must be a number"),
        ("objective.taylor.order", 0, "objective.taylor does nothing at order 0"),
        *[("epochs", value, "epochs must be int") for value in ("many", 2.5, True)],
        ("epochs", 0, "epochs must be >= 1"),
        ("data.augment.flip", 1, "data.augment.flip must be bool"),
        *[("objective.taylor.eta", value, "objective.taylor.eta must be") for value in ("much", True)],
        ("objective.inv_lambda", None, "objective.inv_lambda must be float"),
        ("objective.taylor.mode", "exakt", "did you mean 'exact'?"),
        ("objective.taylor.order", 7, "objective.taylor.order must be"),
        ("attack", 3, "attack: expected settings"),
        ("noise_samples", 2, "noise_samples > 1 does nothing"),
        ("optimizer.lr", 0, "optimizer.lr must be > 0"),
        ("optimizer.layer_decay", 1.0, "optimizer.layer_decay must be > 0 and < 1"),
        ("optimizer", {"kind": "SGD", "nesterov": True, "momentum": 0.0}, "optimizer.nesterov does nothing"),
        ("optimizer", {"kind": "SGD", "decay_norms": False, "weight_decay": 0.0}, "optimizer.decay_norms False does"),
        ("optimizer", {"kind": "AdamW", "decay_norms": True, "weight_decay": 0.0}, "optimizer.decay_norms does"),
        ("objective", {"kind": "AVMixup", "gamma": 0.5}, "objective.gamma must be"),
        ("objective", {"kind": "MMA", "start": 5.0}, "objective.start must be"),
        ("schedule.drops", [100, 150], "schedule.drops must be"),
        ("schedule", {"kind": "OneCycle", "shape": "cos"}, "schedule.shape must be"),
        ("schedule.warmup", 0.5, "schedule.warmup must end before the first of schedule.drops"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_with_its_place(setting: str, value: object, words: str) -> None:
    with pytest.raises(RattleError, match=re.escape(words)):
        Recipe.from_yaml(edited({setting: value}))


def test_numbers_may_be_fractions_and_whole_numbers() -> None:
    changes = {"attack.threat.epsilon": "8/255", "attack.step_size": "1e-2", "objective.taylor.eta": 1}
    recipe = Recipe.from_yaml(edited(changes))
    assert recipe.attack.threat.epsilon == 8 / 255
    assert recipe.attack.step_size == 0.01
    assert recipe.objective.taylor.eta == 1.0
    assert isinstance(recipe.objective.taylor.eta, float)


@pytest.mark.parametrize("text", ["8/0", "8/", "/255", "1/2/3", "eight", ""])
def test_a_fraction_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(RattleError, match=r"must be a number such as 0\.03 or 8/255"):
        parse_number(text)


def test_an_unknown_name_gets_the_nearest_and_a_short_list() -> None:
    near = str(unknown("fruit", "aple", ["apple", "pear"]))
    assert near == "unknown fruit 'aple'; did you mean 'apple'? (one of apple, pear)"
    assert str(unknown("n", "zzz", map(str, range(50)))) == "unknown n 'zzz'"


THREATS = {
    ("digits", "linf"): (0.2, 0.05),
    ("digits", "l2"): (0.8, 0.2),
    **{(d, "linf"): (8 / 255, 2 / 255) for d in ("cifar10", "cifar100", "svhn")},
    **{(d, "l2"): (128 / 255, 15 / 255) for d in ("cifar10", "cifar100", "svhn")},
}


PAPER_AWP = {  # (on TRADES, on the digits) -> AWP
    (True, False): AWP(gamma=0.005, warmup=10),
    (True, True): AWP(gamma=0.005, warmup=5),
    (False, False): AWP(gamma=0.01, warmup=0),
    (False, True): AWP(gamma=0.01, warmup=0),
}


@pytest.mark.parametrize(("dataset", "norm"), list(THREATS))
def test_a_recipe_is_what_its_name_says(dataset: str, norm: str) -> None:
    ours = re.compile(rf"{dataset}-{norm}-[^-]+(-10)?-(at|trades)(-awp)?(-1st|-2nd)?")
    listed = list(filter(ours.fullmatch, list_recipes()))  # other methods: tests/objectives/test_methods.py
    assert len(listed) >= 12
    for name in listed:
        check_recipe(name, dataset, norm)


def check_recipe(name: str, dataset: str, norm: str) -> None:
    recipe = get_recipe(name)
    attack, objective = recipe.attack, recipe.objective
    awp, trades, order = "-awp" in name, "-trades" in name, {"-1st": 1, "-2nd": 2}.get(name[-4:], 0)
    assert (recipe.name, recipe.data.name) == (name, dataset)
    assert f"-{recipe.model}-" in name
    assert (attack.threat.norm, attack.threat.epsilon, attack.step_size) == (norm, *THREATS[dataset, norm])
    assert (attack.steps, attack.loss) == (10, "kl" if trades else "ce")
    assert recipe.validation_attack == PGD(threat=attack.threat, step_size=attack.step_size)
    taylor = Taylor(order=order, eta={1: 0.3, 2: 0.2}.get(order))  # the paper's best
    assert objective == (Trades(inv_lambda=6, taylor=taylor) if trades else AT(taylor=taylor))
    assert recipe.noise.sigma == (0.01 if order else 0)
    assert recipe.awp == (PAPER_AWP[trades, dataset == "digits"] if awp else None)
    assert dataset == "digits" or recipe.epochs == 200
    assert recipe.optimizer.lr == {"digits": 0.05, "svhn": 0.01}.get(dataset, 0.1)
    assert recipe.data.augment.flip == (dataset in ("cifar10", "cifar100"))


def test_the_papers_rows_are_listed() -> None:
    listed = set(list_recipes())
    assert {tuple(name.split("-")[:2]) for name in listed} == {*THREATS, ("imagenet", "linf")}
    assert len(listed) == len(list_recipes())
    for name in ("cifar10-linf-preact18-trades-2nd", "cifar10-l2-preact18-trades-awp-1st", "svhn-linf-preact18-at-awp"):
        assert name in listed
    assert get_recipe("cifar10-linf-wrn16-4-trades-2nd").model == "wrn16-4"  # any known model in the same place


@pytest.mark.parametrize("model", ["convnext-t", "vit-s", "cnn-slim"])
@pytest.mark.parametrize("method", ["at", "trades-awp-2nd", "gowal", "n-fgsm"])
def test_imagenet_recipes_have_the_settings_of_large_images_whatever_the_method(model: str, method: str) -> None:
    recipe = get_recipe(f"imagenet-linf-{model}-{method}")
    assert (recipe.attack.threat.epsilon, recipe.attack.steps) == (4 / 255, 3)
    assert (recipe.optimizer, recipe.schedule) == (AdamW(lr=1e-3), Cosine(warmup=0.1))
    assert isinstance(recipe.average, EMA)
    assert (recipe.batch_size, recipe.data.crop, recipe.data.augment.pad, recipe.normalise) == (1024, 224, 0, True)
    assert recipe.model == {"convnext-t": "timm:convnext_tiny", "vit-s": "timm:vit_small_patch16_224"}.get(model, model)
    assert Recipe.from_yaml(recipe.to_yaml()).refuse_idle() == recipe


def test_a_recipe_is_described_in_one_line() -> None:
    line = describe_recipe("cifar10-l2-preact18-at-awp-1st")
    assert line == "AT-AWP + 1st (Madry et al. 2018, Wu et al. 2020); l2 128/255, 200 epochs"


def test_a_recipe_file_that_is_missing_or_wrong_is_named(tmp_path) -> None:
    with pytest.raises(RattleError, match=r"there is no recipe file .*nowhere.yaml"):
        resolve(str(tmp_path / "nowhere.yaml"))
    (tmp_path / "mine.yml").write_text("epoch: 3")
    with pytest.raises(RattleError, match=r"mine.yml: unknown setting 'epoch'; did you mean 'epochs'"):
        resolve(str(tmp_path / "mine.yml"))


@pytest.mark.parametrize("mode", ["exact", "sampled"])
def test_readings_that_are_taken_along_u_need_noise(mode: str) -> None:
    with pytest.raises(RattleError, match=r"taken along u: .* noise.sigma"):
        Recipe(objective=Trades(taylor=Taylor(order=1, mode=mode)), noise=Noise(sigma=0))
