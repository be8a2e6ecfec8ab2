"""`make smoke`: every module is imported, and every room does one small thing, in ten seconds."""

import importlib
import math
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import rattle
from rattle.cli.main import main
from rattle.data.registry import Data
from rattle.paper.tables import table
from rattle.runs.paths import Run

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # a network after one epoch on 48 images is warned of
]
SMALL = Data(name="digits", train_size=48, val_size=16)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one epoch, evaluated by PGD-2."""
    folder = tmp_path_factory.mktemp("smoke") / "run"
    recipe = replace(rattle.get_recipe("digits-linf-cnn-trades-2nd"), epochs=1, width=4, batch_size=16, data=SMALL)
    found = rattle.fit(recipe, folder, log="none")
    assert main(["evaluate", str(folder), "--attacks", "pgd2", "--n", "10"]) == 0
    return found


def test_every_module_can_be_imported() -> None:
    names = [module.name for module in pkgutil.walk_packages(rattle.__path__, "rattle.")]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    assert len(names) > 60


def test_every_recipe_names_parts_that_there_are() -> None:
    assert rattle.get_recipe("cifar10-linf-preact18-trades-2nd").objective.taylor.order == 2  # type: ignore[attr-defined]
    assert {"pgd20", "autoattack"} <= {*rattle.list_attacks()}
    assert {"preact18", "wrn34-10"} <= {*rattle.list_models()}


def test_an_attack_finds_the_optimum_of_a_linear_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    x, y = torch.full((1, 1, 2, 2), 0.5), torch.tensor([0])
    w = model[1].weight.detach()
    x_adv = rattle.PGD(threat=rattle.Threat(epsilon=0.1), steps=5, step_size=0.05)(model, x, y)
    assert torch.allclose(x_adv, x + 0.1 * (w[1] - w[0]).sign().view_as(x))


def test_a_network_is_perturbed_and_restored() -> None:
    model = rattle.create_model("cnn", classes=3, channels=1, width=2)
    before = [p.detach().clone() for p in model.parameters()]
    u = rattle.Noise(sigma=0.1)(model, generator=torch.Generator().manual_seed(0))
    with rattle.perturbed(model, u):
        assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_loss_has_the_papers_terms(run: Run) -> None:
    images = SMALL.load().test
    x, y = images.x[:4].float() / 255, images.y[:4]
    model, x_adv = rattle.load(run.folder), (x + 0.1).clamp(0, 1)
    plain = rattle.compute_loss(rattle.Trades(), model, x, x_adv, y)
    with_terms = rattle.compute_loss(rattle.Trades(taylor=rattle.Taylor(order=2)), model, x, x_adv, y)
    assert math.isfinite(plain)
    assert with_terms > plain


def test_a_run_is_trained_evaluated_and_shown(run: Run, tmp_path: Path) -> None:
    assert run.checkpoint("last").is_file()
    assert (run.results / "pgd2.json").is_file()
    assert main(["table", str(run.folder), "--out", str(tmp_path / "table.md")]) == 0
    assert "PGD-2" in (tmp_path / "table.md").read_text()
    assert main(["push", str(run.folder), "me/a", "--to", str(tmp_path / "published"), "--no-page"]) == 0
    assert (tmp_path / "published" / "README.md").is_file()


def test_the_papers_tables_are_there() -> None:
    assert [len(table(number).rows) > 0 for number in range(1, 9)] == [True] * 8
