"""Attack settings on the command line: typed, recorded, part of the name, and refused in a sentence."""

import json
from pathlib import Path

import pytest

from rattle.cli.main import main
from rattle.report.compare import compare_runs
from rattle.report.run_data import load_runs
from support.command import Command
from support.tiny_runs import save_files, save_run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command that evaluates somebody else's network on 20 images."""
    folder = tmp_path_factory.mktemp("net")
    save_files(folder, n=20)
    files = ["--weights", str(folder / "w.pt"), "--data", str(folder / "test.npz")]
    return ["evaluate", "--model", f"{folder / 'net.py'}:Net", *files]


def test_settings_are_typed_recorded_and_a_part_of_the_name(plain: list[str], tmp_path: Path) -> None:
    changes = ["--pgd4.step-size", "2/255", "--pgd4.loss=cw", "--square.queries", "7", "--square.restarts", "1"]
    more = ["--apgd-ce.eps-schedule", "false", "--apgd-ce.steps", "2", "--threat.norm", "l1"]
    assert main([*plain, "--attacks", "pgd4", "square", "apgd-ce", *changes, *more, "--out", str(tmp_path)]) == 0
    names = {"pgd4,loss=cw,step-size=0.00784314", "square,queries=7", "apgd-ce,eps-schedule=False,steps=2"}
    assert {path.stem for path in tmp_path.iterdir()} == names
    recorded = {
        name: json.loads((tmp_path / f"{name}.json").read_text())["attacks"][name]["settings"] for name in names
    }
    pgd = recorded["pgd4,loss=cw,step-size=0.00784314"]
    assert (pgd["steps"], pgd["step_size"], pgd["loss"]) == (4, 2 / 255, "cw")
    assert (recorded["square,queries=7"]["queries"], recorded["square,queries=7"]["restarts"]) == (7, 1)
    assert recorded["apgd-ce,eps-schedule=False,steps=2"]["eps_schedule"] is False


def test_an_attack_with_other_settings_is_never_compared_as_equal(plain: list[str], tmp_path: Path) -> None:
    usual, other, renamed = (tmp_path / name for name in ("usual", "other", "renamed"))
    assert main([*plain, "--attacks", "pgd4", "--out", str(usual)]) == 0
    assert main([*plain, "--attacks", "pgd4", "--pgd4.step-size", "0.01", "--out", str(other)]) == 0
    tests, refused = compare_runs(load_runs([usual, other]))
    assert ([test.attack for test in tests], refused) == (["clean"], [])
    renamed.mkdir()
    (stored,) = other.iterdir()
    (renamed / "pgd4.json").write_text(stored.read_text().replace("pgd4,step-size=0.01", "pgd4"))
    tests, refused = compare_runs(load_runs([usual, renamed]))
    assert [test.attack for test in tests] == ["clean"]
    assert "(PGD-4): they differ in step_size (0.0156863; 0.01)" in refused[0]


def test_a_curve_and_a_transfer_take_the_settings_too(plain: list[str], tmp_path: Path) -> None:
    changed = ["--attacks", "pgd2", "--pgd2.restarts", "2", "--epsilons", "0", "0.1", "--out", str(tmp_path)]
    assert main([*plain, *changed]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"pgd2,restarts=2.json", "pgd2,restarts=2-curve.json"}
    run = str(save_run(tmp_path / "run"))
    assert main(["transfer", "--from", run, "--to", run, "--n", "9", "--attacks", "pgd2", "--pgd2.step-size=0.1"]) == 0
    assert (tmp_path / "run" / "results" / "transfer-pgd2,step-size=0.1.json").is_file()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pgd4", "--pdg4.step-size", "1"], "'pdg4'; did you mean 'pgd4'?"),
        (["pgd4", "--thread.epsilon", "1"], "'thread'; did you mean 'threat'?"),
        (["autoattack", "--apgd-ce.restarts", "5"], "unknown attack of this evaluation 'apgd-ce'"),
        (["autoattack", "--autoattack.version", "plus"], "autoattack with other version would not be autoattack"),
        (["pgd4", "--pgd4.restarts", "2.5"], "pgd4.restarts must be int, got 2.5"),
        (["pgd4", "--pgd4.step-size"], "pgd4.step_size must be a number such as 0.03 or 8/255, got 'true'"),
        (["pgd4", "--pgd4.loss", "dlr"], "attack.loss must be one of ce, kl, cw, got 'dlr'"),
        (["pgd4", "--pgd4.threat.epsilon", "1"], "the threat is the same for all attacks: --threat.epsilon"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(
    plain: list[str], words: list[str], sentence: str, tmp_path: Path, command: Command
) -> None:
    assert sentence in command.refused(*plain, "--attacks", *words, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_an_ensemble_over_weight_noise_has_results_of_its_own_and_fresh_noise_a_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = ["evaluate", "zoo:digits-linf-cnn-trades", "--attacks", "pgd1", "--n", "20"]
    folder, noise = tmp_path / "zoo_digits-linf-cnn-trades", ["--noise.sigma", "0.05"]
    assert main(usual) == 0
    before = (folder / "results" / "pgd1.json").read_text()
    assert main([*usual, *noise, "--draws", "2"]) == 0
    assert main([*usual, *noise, "--noise.scale", "filter", "--noise.fresh", "--draws", "8", "--eot", "2"]) == 0
    assert (folder / "results" / "pgd1.json").read_text() == before
    fixed, fresh = (
        json.loads((folder / f"results-sigma=0.05-{name}" / "pgd1.json").read_text())
        for name in ("draws=2", "of-filters-fresh")
    )
    assert set(fixed["clean_flags"]) <= {0, 1}
    assert "draws" not in fixed
    assert (fresh["draws"]["count"], fresh["attacks"]["pgd1"]["draws"]["eot"]) == (8, 2)
    tests, refused = compare_runs(load_runs(sorted(folder.iterdir())))
    assert (len(tests), refused) == (6, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--noise.sigma", "0.01", "--draws", "0"], "draws must be a whole number of 1 or more"),
        (["--noise.sigma", "0"], "moves no weight"),
        (["--noise.fresh"], "need --noise.sigma"),
        (["--noise.sigma", "0.01", "--eot", "2"], "draws and eot are for models that answer at random"),
        (["--draws", "16"], "draws and eot are for models that answer at random"),
        (["--noise.sigma", "0.01", "--noise.fresh", "--draws", "4"], "draws must be >= 8"),
        (["--pgd1.eot", "2"], "--eot 16"),
    ],
)
def test_noise_and_draws_that_do_nothing_are_refused(
    options: list[str], words: str, command: Command, tmp_path: Path
) -> None:
    usual = ["evaluate", "zoo:digits-linf-cnn-trades", "--attacks", "pgd1", "--n", "20", "--out", str(tmp_path)]
    assert words in command.refused(*usual, *options)
