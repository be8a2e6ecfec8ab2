"""Which images are attacked: fair nested samples, and as many as a precision asks for."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import rattle
from rattle.cli.main import main
from rattle.data.dataset import choose_images, fair_order
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.results import load_results
from rattle.stats import LEVEL_OF_LOOKS, wilson
from rattle.threat import Threat
from support.command import Command
from support.tiny_runs import digits, linear, save_files, save_run

SORTED = torch.arange(4).repeat_interleave(torch.tensor([100, 50, 30, 20]))  # class by class, of unequal sizes


@pytest.mark.parametrize("n", [4, 20, 77, 200])
def test_a_sample_holds_every_class_in_proportion(n: int) -> None:
    counts = SORTED[choose_images(SORTED, n, seed=3)].bincount(minlength=4)
    assert (counts - n * torch.tensor([0.5, 0.25, 0.15, 0.1])).abs().max() <= 1


def test_a_sample_is_drawn_by_its_seed_and_lies_in_every_larger_one() -> None:
    samples = [choose_images(SORTED, n).tolist() for n in (10, 50, 120)]
    assert samples[0] == samples[1][:10]
    assert samples[1] == samples[2][:50]
    assert samples[1] != choose_images(SORTED, 50, seed=1).tolist()
    assert sorted(fair_order(SORTED, 0).tolist()) == list(range(200))


def test_over_seeds_every_image_is_as_likely_as_any_other() -> None:
    drawn = torch.stack([torch.zeros(200).index_fill(0, choose_images(SORTED, 50, seed=s), 1.0) for s in range(2000)])
    assert (drawn.mean(0) - 0.25).abs().max() < 5 * (0.25 * 0.75 / 2000) ** 0.5


def test_the_first_images_and_all_images_keep_their_order() -> None:
    assert choose_images(SORTED, 7, first=True).tolist() == list(range(7))
    assert choose_images(SORTED, 900).tolist() == list(range(200))


def test_an_image_has_the_same_flag_in_every_sample_that_holds_it() -> None:
    _, _, x, y = digits()
    few, many = (choose_images(y, n) for n in (40, 110))
    settings = {"threat": Threat(epsilon=0.08), "batch_size": 16}
    flags = [evaluate(linear(), x[i], y[i], "pgd5", index=i, **settings).attacks["pgd5"].flags for i in (few, many)]
    assert flags[0] == flags[1][:40]
    assert 0 < sum(flags[0]) < 40


def test_a_file_sorted_by_class_is_sampled_fairly(here: Path) -> None:
    save_files(here)
    _, _, x, y = digits()
    by_class = y.argsort(stable=True)
    np.savez(here / "sorted.npz", x_test=x[by_class].squeeze(1).numpy(), y_test=y[by_class].numpy())
    words = ["evaluate", "--model", "net.py:Net", "--weights", "w.pt", "--data", "sorted.npz", "--attacks", "fgsm"]
    assert main([*words, "--n", "20"]) == 0
    saved = json.loads(Path("w.pt-results/fgsm.json").read_text())
    assert (y[by_class][torch.tensor(saved["index"])].bincount(minlength=10) >= 1).all()
    assert saved["sample"] == {"order": "fair", "seed": 0}
    assert saved["test_images"] == len(y)
    assert main([*words, "--n", "20", "--first"]) == 0
    first = json.loads(Path("w.pt-results/fgsm.json").read_text())
    assert first["sample"] == {"order": "first"}
    assert "index" not in first  # as in files of earlier versions, which always took the first n


def test_an_attack_ends_once_its_accuracy_is_known_precisely_enough(tmp_path: Path) -> None:
    _, _, x, y = digits()
    order = fair_order(y, 0)
    attacks = ["fgsm", "pgd5"]
    settings = {"threat": Threat(epsilon=0.02), "index": order, "batch_size": 20, "out": tmp_path}
    result = evaluate(linear(), x[order], y[order], attacks, within=5, **settings)
    stored, _ = load_results(tmp_path)
    whole = evaluate(linear(), x[order], y[order], attacks, threat=Threat(epsilon=0.02), index=order)
    for name, attack in result.attacks.items():
        n = len(attack.flags)
        assert n == 260 < len(y) == result.n  # the end of the batch in which the 250th image is
        assert attack.flags == whole.attacks[name].flags[:n]
        interval = wilson(sum(attack.flags), n, LEVEL_OF_LOOKS)
        assert interval.high - interval.low <= 0.1
        assert stored[name].flags == tuple(attack.flags)
        assert len(json.loads((tmp_path / f"{name}.json").read_text())["index"]) == n


def test_a_precision_is_asked_for_on_the_command_line_and_in_python(tmp_path: Path, command: Command) -> None:
    run = save_run(tmp_path / "run")
    words = ["--attacks", "fgsm", "pgd5", "--threat.epsilon", "0.2", "--within", "5", "--batch-size", "25"]
    out = command("evaluate", str(run), *words)
    result = rattle.benchmark(rattle.load(run), "digits", attacks="fgsm", epsilon=0.2, within=5, batch_size=25)
    saved = json.loads((run / "results" / "fgsm.json").read_text())
    assert (saved["within"], saved["attacks"]["fgsm"]["flags"]) == (5, result.attacks["fgsm"].flags)
    assert saved["n"] < saved["test_images"]
    assert f"(n {saved['n']})" in out
    assert out.rstrip().rpartition("\n")[2].startswith("caveats: only an upper bound")


def test_the_first_images_are_no_sample(tmp_path: Path, command: Command) -> None:
    run = save_run(tmp_path / "run")
    for words in (["--first"], ["--first", "--n", "20", "--within", "5"]):
        assert "--first goes with --n, and not with --within" in command.refused("evaluate", str(run), *words)
