"""Two processes are one: losses, weights and verdicts do not depend on how many ranks a batch is spread over."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rattle.cli import main as cli
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation import cache as store
from rattle.evaluation import evaluate as evaluation
from rattle.evaluation import verify
from rattle.forward import Outputs
from rattle.inputs import NotFinite
from rattle.objectives import AT, Mart, S2OTrades, Taylor, Trades
from rattle.objectives.fat_trades import FATTrades
from rattle.objectives.hat import HAT
from rattle.objectives.kd_swa import KD
from rattle.objectives.lbgat import LBGAT
from rattle.objectives.trades import Released
from rattle.recipes.recipe import Recipe
from rattle.runs import distributed
from rattle.runs.checkpoint import read_checkpoint
from rattle.runs.paths import Run
from rattle.training import loop as train
from rattle.training import ranks as training_ranks
from rattle.training.loop import fit
from rattle.training.state import init_state
from rattle.weights import ASAM, AWP, EMA, SAM
from support.double_precision import check_equal, five_steps, precisely
from support.precision import in_double
from support.processes import ranks, together, until
from support.training import dies_at, tiny

pytestmark = pytest.mark.process
SIZES = ["--width", "4", "--data.train-size", "256", "--batch-size", "64", "--attack.steps", "2", "--threads", "1"]


CASES = {
    "order 0": five_steps(0),
    "order 2": five_steps(2),
    "AWP order 2": five_steps(2, awp=AWP(gamma=0.02, warmup=0)),
    "held order 2": five_steps(2, model="cnn", batch_norm="held", average=EMA(decay=0.5)),
    "held AWP order 2": five_steps(2, model="cnn", batch_norm="held", awp=AWP(gamma=0.02, warmup=0)),
    "micro-batches": five_steps(0, accumulate=2),
    "exact": five_steps(0, objective=Trades(taylor=Taylor(order=2, mode="exact"))),
    "sampled": five_steps(0, objective=Trades(taylor=Taylor(order=2, mode="sampled")), noise_samples=2),
    "the release": five_steps(2, objective=Released()),
    "AWP of the release": five_steps(2, objective=Released(), awp=AWP(gamma=0.02, warmup=0)),
    "S2O": five_steps(0, objective=S2OTrades()),
    "MART, SAM": five_steps(0, objective=Mart(), awp=SAM(rho=0.2)),
    "ASAM order 2": five_steps(2, awp=ASAM()),
    "a teacher along": five_steps(0, objective=LBGAT()),
    "held, a teacher along, AWP": five_steps(
        0, objective=LBGAT(), model="cnn", batch_norm="held", awp=AWP(gamma=0.02, warmup=0)
    ),
    "a teacher first": five_steps(0, objective=HAT()),
    "two teachers first": five_steps(0, objective=KD()),
    "an attack that stops early": five_steps(0, objective=FATTrades()),
}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case, trained by two processes."""
    folder = tmp_path_factory.mktemp("two")

    def all_cases() -> None:
        for name, recipe in CASES.items():
            precisely(recipe, folder / name)

    together(all_cases, folder / "logs")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process_on_the_joined_batch(on_two_ranks: Path, tmp_path: Path, case: str) -> None:
    whole = precisely(replace(CASES[case], accumulate=1), tmp_path)
    check_equal(whole, Run(on_two_ranks / case))


def test_each_micro_batch_has_its_own_head_gradients_and_awp_direction_and_all_share_u() -> None:
    recipe = five_steps(2, awp=AWP(gamma=0.02, warmup=0))
    with in_double():
        together = gradients(replace(recipe, accumulate=2))
        first, second = (gradients(recipe, half) for half in torch.arange(64).chunk(2))
    torch.testing.assert_close(together, 0.5 * first + 0.5 * second)


def gradients(recipe: Recipe, index: torch.Tensor | None = None) -> torch.Tensor:
    """The first step's gradient, flat."""
    data = recipe.data.load()
    state = init_state(recipe, data)
    state.train_mode()
    forward, ddp_forward = training_ranks.wrap_model(state)
    train.train_step(state, forward, ddp_forward, data.train, torch.arange(64) if index is None else index)
    return torch.cat([p.grad.flatten() for p in state.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("parts", [1, 2])
def test_bf16_gradients_point_where_those_of_single_precision_do(parts: int) -> None:
    strong = five_steps(2, awp=AWP(gamma=0.5, warmup=0), accumulate=parts)
    wanted, found = gradients(strong), gradients(replace(strong, precision="bf16"))
    without = gradients(replace(strong, precision="bf16", awp=None))
    assert torch.cosine_similarity(wanted, found, dim=0) > 0.99
    assert torch.cosine_similarity(wanted, found, dim=0) > torch.cosine_similarity(wanted, without, dim=0) + 0.01


def test_in_bf16_the_objective_gets_float32_and_multiplies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def terms(self: Trades, outputs: Outputs, y: torch.Tensor, context: object) -> dict[str, torch.Tensor]:
        z = outputs.logits_adv
        seen.append({z.dtype, outputs.features_adv.dtype, (z.T @ z).dtype})
        return {"zeroth": z.mean()}

    monkeypatch.setattr(Trades, "terms", terms)
    gradients(five_steps(2, precision="bf16", awp=AWP(gamma=0.02, warmup=0)))
    assert seen == [{torch.float32}, {torch.float32}]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_a_compiled_network_trains_to_the_same_weights(tmp_path: Path) -> None:
    recipe = five_steps(2)
    eager = precisely(recipe, tmp_path / "eager")
    compiled = precisely(replace(recipe, compile=True), tmp_path / "compiled")
    check_equal(eager, compiled)


def test_statistics_over_ranks_need_a_gpu_and_say_so(tmp_path: Path) -> None:
    recipe = tiny(batch_norm="sync", device="cpu")
    with pytest.raises(RattleError, match="batch-norm sync needs GPUs, this is cpu: use --batch-norm held or local"):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_that_does_not_divide_over_the_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    with pytest.raises(RattleError, match="a minibatch of 64 images does not divide over 3 ranks: change --batch-size"):
        training_ranks.shard(torch.arange(64))


def local_statistics() -> Recipe:
    """With BatchNorm as ranks keep it by default, averaging, and checkpoints inside the epoch."""
    return five_steps(2, model="cnn", epochs=2, average=EMA(decay=0.5), save_minutes=0)


def content(run: Run) -> tuple[bytes, dict[str, list]]:
    return run.metrics.read_bytes(), {k: v.tolist() for k, v in read_checkpoint(run.checkpoint("last")).tensors.items()}


def test_ranks_killed_between_two_steps_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    together(lambda: fit(local_statistics(), tmp_path / "whole"), tmp_path / "logs")

    def killed() -> None:
        dies_at((train, "train_step"), 8)()
        with distributed.process_group():
            fit(local_statistics(), tmp_path / "run")

    assert [child.wait() for child in ranks(2, killed, tmp_path / "logs")] == [-signal.SIGKILL] * 2
    assert read_checkpoint(Run(tmp_path / "run").checkpoint("last")).progress["step"] == 7
    together(lambda: fit(local_statistics(), tmp_path / "run", resume=True), tmp_path / "logs")
    assert content(Run(tmp_path / "run")) == content(Run(tmp_path / "whole"))


def test_a_signal_to_one_rank_stops_all_of_them_with_everything_saved(tmp_path: Path) -> None:
    def action() -> int:
        return cli.main(["train", "digits-linf-cnn-trades", "--out", str(tmp_path / "run"), *SIZES, "--epochs", "500"])

    children = ranks(2, action, tmp_path / "logs")
    until((tmp_path / "run" / "metrics.jsonl").exists)
    children[1].send(signal.SIGTERM)
    assert [child.wait() for child in children] == [143, 143]
    assert read_checkpoint(Run(tmp_path / "run").checkpoint("last")).progress["step"] > 0


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (["--batch-size", "63"], "a minibatch of 63 images does not divide over 2 ranks"),
        (["--model", "nonsense"], "unknown model 'nonsense'"),
        (["--out", "thesis"], "thesis is not empty and holds no run"),  # found by the first rank alone
    ],
)
def test_a_mistake_on_several_ranks_is_one_sentence_of_the_first(here: Path, mistake: list[str], words: str) -> None:
    (here / "thesis").mkdir()
    (here / "thesis" / "thesis.tex").write_text("years of work")

    def action() -> int:
        return cli.main(["train", "digits-linf-cnn-trades-2nd", "--out", "run", *SIZES, *mistake])

    children = ranks(2, action, here / "logs")
    assert [child.wait() for child in children] == [2, 2], children[0].words()
    assert words in children[0].words()
    assert children[0].words().count("\n") == 1
    assert children[1].words() == ""
    assert not (here / "run").exists()


def test_ranks_with_different_images_are_refused(tmp_path: Path) -> None:
    def action() -> None:
        x = torch.randint(256, (128, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        x[5] += int(os.environ["RANK"])
        words = "rank 1 of 2 has other images than rank 0: give every machine the same files"
        with pytest.raises(RattleError, match=words) as mistake:
            fit(tiny(data=Data(name="mine", val_size=0)), tmp_path / "run", data=(x, torch.arange(128) % 10))
        assert mistake.value.told == (os.environ["RANK"] == "1")

    together(action, tmp_path / "logs")
    assert not (tmp_path / "run").exists()


class NanOnOneRank(nn.Sequential):
    """The first rank gets NaN: always, or after some steps without gradients, so in validation and not in attacks."""

    def __init__(self, after: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.steps, self.after = 0, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        spoiled = self.after == 0 or not torch.is_grad_enabled()
        bad = os.environ["RANK"] == "0" and self.steps >= self.after and spoiled
        return super().forward(x) + (torch.nan if bad else 0)


@pytest.mark.parametrize(("after", "words"), [(3, "the loss diverged at step 5"), (0, "the model returned NaN logits")])
def test_a_nan_on_one_rank_stops_all_of_them(tmp_path: Path, after: int, words: str) -> None:
    """After 0 steps it is met where the module is looked at first, later in validation."""

    def action() -> None:
        with pytest.raises(RattleError, match=words):
            fit(five_steps(0, objective=AT()), tmp_path / "run", model=NanOnOneRank(after))

    together(action, tmp_path / "logs")


def test_an_evaluation_that_one_rank_refuses_stops_all_of_them(tmp_path: Path) -> None:
    x, y = torch.rand(40, 1, 8, 8), torch.zeros(40, dtype=torch.long)

    def action() -> None:
        with pytest.raises(NotFinite, match="the model returned NaN logits"):
            evaluation.evaluate(NanOnOneRank(0), x, y, "fgsm", batch_size=20)

    together(action, tmp_path / "logs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(five_steps(0, model="cnn"), tmp_path_factory.mktemp("trained") / "run")


def verdicts(folder: Path) -> dict[str, object]:
    """What evaluations must agree on: everything but the time they took."""
    found = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    for each in found.values():
        each.pop("seconds")
        for attack in each["attacks"].values():
            attack.pop("seconds")
    return found


def evaluating(run: Run, folder: Path) -> list[str]:
    attacks = ["--attacks", "fgsm", "pgd10", "--threat.epsilon", "0.05", "--seed", "3"]
    return ["evaluate", str(run.folder), *attacks, "--out", str(folder), "--n", "56", "--batch-size", "8"]


def test_an_evaluation_on_two_ranks_gives_exactly_the_flags_of_one_process(trained: Run, tmp_path: Path) -> None:
    assert cli.main(evaluating(trained, tmp_path / "one")) == 0
    children = ranks(2, lambda: cli.main(evaluating(trained, tmp_path / "two")), tmp_path / "logs")
    assert [child.wait() for child in children] == [0, 0], children[0].words()
    flags = verdicts(tmp_path / "one")["pgd10.json"]["attacks"]["pgd10"]["flags"]  # type: ignore[index]
    assert 0 < sum(flags) < len(flags) == 56
    assert verdicts(tmp_path / "two") == verdicts(tmp_path / "one")
    assert not list((tmp_path / "two").glob(".*"))


def test_a_killed_evaluation_is_resumed_on_another_number_of_ranks(trained: Run, tmp_path: Path) -> None:
    assert cli.main(evaluating(trained, tmp_path / "one")) == 0

    def deadly() -> int:
        dies_at((store, "append_line"), 2, after=True)()
        return cli.main(evaluating(trained, tmp_path / "two"))

    assert [child.wait() for child in ranks(2, deadly, tmp_path / "logs")] == [-signal.SIGKILL] * 2
    judged, real = [], verify.attack_batch

    def counted(*args: object, **options: object) -> object:
        judged.append(1)
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "attack_batch", counted)
        assert cli.main(evaluating(trained, tmp_path / "two")) == 0
    assert verdicts(tmp_path / "two") == verdicts(tmp_path / "one")
    assert len(judged) == 2 * 7 - 4  # seven batches an attack


def torchrun(*args: str, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *args]
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env={**os.environ, **settings}, **pipes)


def rank_processes(job: subprocess.Popen) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.slow
def test_torchrun_restarts_a_job_whose_rank_was_killed_and_it_finishes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    recipe = ["digits-linf-cnn-trades-2nd", *SIZES, "--epochs", "12"]
    job = torchrun("--max-restarts", "2", "-m", "rattle", "train", *recipe, "--out", str(out))
    until((out / "checkpoints" / "previous.safetensors").exists, 120)
    os.kill(rank_processes(job)[-1], signal.SIGKILL)
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 0, said
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    whole = torchrun("-m", "rattle", "train", *recipe, "--out", str(tmp_path / "whole"))
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    assert content(Run(out)) == content(Run(tmp_path / "whole"))


@pytest.mark.parametrize(("count", "folder"), [("1", "resumed"), ("0", "refused")])
def test_what_torchrun_starts_again_resumes(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: str, folder: str
) -> None:
    copy = tmp_path / folder
    shutil.copytree(trained.folder, copy)
    before = content(Run(copy))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert cli.main(["train", str(copy), "--out", str(copy)]) == (0 if count == "1" else 2)
    assert content(Run(copy)) == before
