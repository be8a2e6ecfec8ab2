"""`fit` with a module and images from Python: every form of them, resumed, rolled back, opened again, or refused."""

import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rattle
from rattle.cli.main import main
from rattle.data import Augment, Data, Dataset, Images
from rattle.errors import RattleError
from rattle.models import create_model
from rattle.recipes.recipe import Recipe
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.training.fit_inputs import take_images
from rattle.training.loop import epoch_order
from rattle.training.state import init_state
from rattle.weights import EMA
from support.training import Interrupting, Listening, Stop, content

ROOT = Path(__file__).parents[2]


class Net(nn.Module):
    """Flattens by `.view`, as many people's networks do; has BatchNorm and dropout."""

    def __init__(self, classes: int = 3, channels: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(8 * 64, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.conv(x)))
        return self.fc(self.drop(hidden.view(len(x), -1)))


class Last(nn.Module):
    """A network that ends in something else than logits."""

    def __init__(self, end: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body, self.end = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.body(x))


def net(seed: int = 0, **settings: int) -> Net:
    torch.manual_seed(seed)
    return Net(**settings)


def images(n: int = 60, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Images whose brightest third says their class."""
    generator, y = torch.Generator().manual_seed(0), torch.arange(n) % 3
    x = torch.randint(0, 100, (n, channels, 8, 8), generator=generator, dtype=torch.uint8)
    for label in range(3):
        x[y == label, :, 2 * label : 2 * label + 3] += 120
    return x, y


def recipe(method: str = "trades-2nd", **changes: Any) -> Recipe:
    settings = {"epochs": 2, "batch_size": 16, "epsilon": 0.05, "threads": 1, **changes}
    made = rattle.make_recipe(method, **settings)
    short = {"attack": replace(made.attack, steps=2), "val_attack": replace(made.val_attack, steps=2)}
    return replace(made, optimizer=replace(made.optimizer, lr=0.02), **short)


def fit(out: Path, module: nn.Module | None = None, data: Any = None, made: Recipe | None = None, **how: Any) -> Run:
    data = images() if data is None else data
    return rattle.fit(
        made or recipe(), out, model=net() if module is None else module, data=data, **{"log": "none", **how}
    )


def weights(run: Run, name: str = "last") -> dict[str, Tensor]:
    return read_checkpoint(run.checkpoint(name)).part("model")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_narrow_network_trains_on_images_of_64_pixels(tmp_path: Path) -> None:
    x, y = images(6, channels=3)
    made = recipe("trades", model="preact18", width=8, epochs=1)
    run = fit(tmp_path, create_model("preact18", classes=3, width=8), (x.repeat(1, 1, 8, 8), y), made)
    assert all(weight.isfinite().all() for weight in weights(run).values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was never stopped."""
    return fit(tmp_path_factory.mktemp("whole"), made=recipe(average=EMA(decay=0.8)))


def test_a_module_and_tensors_are_trained_in_place_and_the_best_weights_opened_again(tmp_path: Path) -> None:
    x, y = images()
    module, made = net(), recipe("trades", epochs=6)
    run = fit(tmp_path, module, (x, y), made)
    assert not module.training
    assert same(dict(module.state_dict()), weights(run))
    best = rattle.load(tmp_path, model=net(seed=1))
    assert same(dict(best.state_dict()), weights(run, "best"))
    result = rattle.evaluate(best, x / 255, y, "pgd5", epsilon=0.02, out=run.results)
    assert result.robust_accuracy > 0.8  # chance is a third
    saved = rattle.Recipe.from_yaml(run.recipe.read_text())
    assert saved.model == f"python:{__name__}.Net"
    assert saved.data.name.startswith("memory:")
    assert read_checkpoint(run.checkpoint("best")).classes == ("0", "1", "2")


def forms() -> dict[str, Any]:
    x, y = images(channels=3)
    arrays = x.numpy(), y.numpy().astype(np.int32)
    pairs = TensorDataset(x, y)
    return {
        "arrays": arrays,
        "channels last": (arrays[0].transpose(0, 2, 3, 1), arrays[1]),
        "Dataset": pairs,
        "DataLoader": DataLoader(pairs, batch_size=7),
        "list": list(images(channels=3)),
        "ours": Dataset(name="mine", train=Images(x, y), test=Images(x[:9], y[:9]), classes=("a", "b", "c")),
    }


def test_every_form_of_the_same_images_is_the_same_dataset() -> None:
    made, (x, y) = recipe("at", data=Data(name="memory", val_size=0)), images(channels=3)
    for form, data in forms().items():
        found = take_images(made, net(channels=3), data, None)[1].train
        assert torch.equal(found.x, x), form
        assert torch.equal(found.y, y), form


def test_float_images_are_not_rounded() -> None:
    x, y = images()
    half_a_step = (x / 255 + 0.5 / 255).numpy().astype(np.float64)
    found = take_images(recipe("at", data=Data(name="memory", val_size=0)), net(), (half_a_step, y.numpy()), None)[
        1
    ].train
    torch.testing.assert_close(found.x, torch.from_numpy(half_a_step).float(), rtol=0, atol=0)


def test_images_are_held_out_and_changed_as_the_recipe_says() -> None:
    made = recipe("at", epochs=1, data=Data(name="memory", val_size=9, train_size=33, augment=Augment(pad=2)))
    taken, found = take_images(made, None, images(), ("a", "b", "c"))
    assert (len(found.train), len(found.val or ()), len(found.test)) == (33, 9, 0)
    assert found.classes == ("a", "b", "c")
    assert taken.data.augment == Augment(pad=2)
    _, found = take_images(rattle.get_recipe("digits-linf-cnn-trades"), None, images(), None)
    assert (len(found.train), len(found.val or ())) == (54, 6)  # not as many as of the recipe's own images


def test_the_names_of_classes_come_from_the_argument_or_the_dataset(tmp_path: Path) -> None:
    named = TensorDataset(*images())
    named.classes = ["cat", "dog", "cow"]  # type: ignore[attr-defined]
    assert take_images(recipe(), net(), DataLoader(named), None)[1].classes == ("cat", "dog", "cow")
    assert take_images(recipe(), net(classes=5), images(), None)[1].classes == tuple("01234")
    with pytest.raises(RattleError, match="the model has 3 outputs, but the data have 2 classes"):
        fit(tmp_path / "a", data=images(2), classes=["a", "b"])
    assert not (tmp_path / "a").exists()


def test_a_module_alone_is_trained_on_the_recipes_images(tmp_path: Path) -> None:
    data = Data(name="digits", train_size=64, val_size=10)
    run = rattle.fit(recipe("at", data=data, epochs=1), tmp_path / "a", model=net(classes=10), log="none")
    again = rattle.fit(recipe("at", epochs=1), tmp_path / "b", model=net(classes=10), data=data, log="none")
    assert same(weights(run), weights(again))


@pytest.mark.parametrize("mode", ["head", "exact", "sampled"])
def test_a_module_with_its_logits_in_an_object_trains_as_if_it_returned_them(mode: str, tmp_path: Path) -> None:
    made = recipe(objective=rattle.Trades(taylor=rattle.Taylor(order=2, mode=mode)))
    runs = []
    for name, end in (("object", lambda z: SimpleNamespace(loss=None, logits=z)), ("plain", lambda z: z)):
        torch.manual_seed(0)
        module = Last(end)
        runs.append(fit(tmp_path / name, module, made=made))
    assert same(*(weights(run, "best") for run in runs))


def test_a_module_that_moved_in_the_code_is_resumed_and_another_one_is_not(whole: Run, tmp_path: Path) -> None:
    made = recipe(average=EMA(decay=0.8))
    with pytest.raises(Stop):
        fit(tmp_path, made=made, console=Interrupting(steps=5))
    wider = net()
    wider.conv = nn.Conv2d(1, 8, 5, padding=2)
    with pytest.raises(RattleError, match=r"holds another network: .* conv.weight"):
        fit(tmp_path, wider, made=made, resume=True)
    x, y = images()
    with pytest.raises(RattleError, match="was trained on other images than those given now"):
        fit(tmp_path, data=(255 - x, y), made=made, resume=True)
    moved = net(seed=5)
    moved.__class__ = type("Net", (Net,), {"__module__": "elsewhere"})
    assert content(fit(tmp_path, moved, made=made, resume=True)) == content(whole)


def bad_modules() -> dict[str, tuple[Any, str]]:
    frozen = net().requires_grad_(False)
    return {
        "class": (Net, "model must be a torch.nn.Module with weights, got <class"),
        "probabilities": (Last(lambda z: z.softmax(1)), "the model returns probabilities: return the logits"),
        "one logit": (Last(lambda z: z[:, :1]), "one logit"),
        "dict": (Last(lambda z: {"scores": z}), "the model must return logits [n, C]"),
        "nan": (Last(lambda z: z * float("nan")), "NaN"),
        "double": (net().double(), "the model's weights are torch.float64, training takes torch.float32"),
        "other size": (nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), "does not take images of shape [1, 8, 8]: mat1"),
        "few classes": (net(classes=2), "labels run from 0 to 2, but there are 2 classes"),
        "frozen": (frozen, "no parameter of the module requires a gradient"),
        "detached": (Last(lambda z: z.detach()), "have no gradient"),
        "no head": (nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), "no nn.Linear"),
    }


def bad_data() -> dict[str, tuple[Any, str]]:
    x, y = images()
    pairs = TensorDataset(x, y)
    return {
        "images alone": (x, "data must be (images, labels), a Dataset or a DataLoader, got Tensor"),
        "shuffled": (DataLoader(pairs, shuffle=True), "use shuffle=False"),
        "normalised": ((x / 255 * 4 - 2, y), "images must lie in [0, 1]"),
        "grey": ((x[:, 0], y), "[n, C, H, W]"),
        "labels": ((x, y.float()), "labels must be whole numbers"),
        "fewer labels": ((x, y[:5]), "60 images but 5 labels"),
        "negative": ((x, y - 1), "labels run from -1 to 1"),
        "none": ((x[:0], y[:0]), "empty"),
    }


@pytest.mark.parametrize("kind", [*bad_modules(), *bad_data()])
def test_what_cannot_be_trained_or_trained_on_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    module, sentence = bad_modules().get(kind, (None, ""))
    data, sentence = bad_data().get(kind, (None, sentence))
    with pytest.raises(RattleError) as caught:
        fit(tmp_path / "run", module, data)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_settings_that_do_nothing_to_what_was_given_are_refused(tmp_path: Path) -> None:
    x, y = images()
    parts = {"train": Images(x[9:], y[9:]), "val": Images(x[:9], y[:9]), "test": Images(x[:3], y[:3])}
    ours = Dataset(name="mine", **parts, classes=("a", "b", "c"))
    assert len(take_images(recipe(), net(), ours, None)[1].val or ()) == 9
    both = {"model": net(), "data": (x, y)}
    own_size = recipe(data=Data(name="memory", val_size=5))
    for made, given, sentence in (
        (recipe(normalise=True), both, "make the normalisation the first layer of your module"),
        (recipe(data=Data(name="memory", resize=4)), both, "data.resize does nothing to images given in Python"),
        (own_size, {"model": net(), "data": ours}, "data.val_size does nothing: the Dataset has 9 held-out images"),
        (recipe(), {"model": net(), "classes": ["a"]}, "classes are the names of the labels in data"),
        ("trades-2nd", both, "trades-2nd is a method: name a recipe of it"),
        (recipe(), {"model": net()}, "the images were given in Python and are not stored"),
        (recipe(), {"data": (x, y)}, "was given in Python and is not stored: give it again"),
    ):
        with pytest.raises(RattleError, match=sentence):
            rattle.fit(made, tmp_path / "run", **given)


def test_commands_say_what_to_do_with_a_run_of_a_module(whole: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(whole.folder)
    with pytest.raises(RattleError, match=r"was given in Python and is not stored: give it again, rattle.load\(RUN"):
        rattle.load(run)
    for command in (
        ["evaluate", run, "--attacks", "fgsm"],
        ["evaluate", run, "--attacks", "fgsm", "--data", "digits"],
        ["export", run],
        ["landscape", run],
        ["train", run, "--out", run, "--resume"],
    ):
        assert main(command) == 2, command
        error = capsys.readouterr().err
        assert "given in Python and" in error, command
        assert "Traceback" not in error


def test_the_example_runs_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "train_my_module.py"))
    assert example["main"](str(tmp_path / "run"), epochs=4) > 0.3  # chance is 0.1
    assert "pgd20" in capsys.readouterr().out


def test_the_lines_of_the_guide_run_as_they_stand(here: Path) -> None:
    text = (ROOT / "docs" / "guides" / "own-model.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "own-model.md", "exec"), {"rattle": rattle})
    assert (here / "runs" / "mine" / "results" / "pgd20.json").exists()


def test_imbalanced_classes_are_said_and_drawn_equally_often(tmp_path: Path) -> None:
    x, y = images(90)
    kept = torch.cat([(y == 0).nonzero()[:, 0], (y != 0).nonzero()[:12, 0]])
    console = Listening()
    data = Data(name="memory", val_size=0, balanced=True, augment=Augment(pad=0, flip=False))
    fit(tmp_path / "run", data=(x[kept], y[kept]), made=recipe("trades", epochs=1, data=data), console=console)
    assert "classes are imbalanced: 6 images of 1, 30 of 0" in console.lines
    _, found = take_images(recipe("trades", data=data), net(), (x[kept], y[kept]), None)
    order = epoch_order(init_state(recipe("trades", data=data), found, net()), len(kept))
    assert y[kept][torch.cat(order)].bincount().min() >= 8  # two minibatches of 16 of the 42 images


def test_what_a_start_should_be_known_for_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.LogSoftmax(1))
    recipe = rattle.make_recipe("trades-awp", epochs=2, evaluate_every=2, awp=rattle.AWP(gamma=0.01, warmup=1))
    rattle.fit(replace(recipe, attack=replace(recipe.attack, steps=1)), tmp_path, model=model, data=(x, y), log="none")
    assert [record.message.split(":")[0] for record in caplog.records] == ["the model returns log-probabilities"]
    assert capsys.readouterr().err.count("AWP in the last 1 of 2 epochs") == 1
