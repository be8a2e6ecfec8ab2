"""rattle paper: a table of the paper, trained, attacked and printed beside the published numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rattle.analysis.prepare import compute_landscapes
from rattle.cli.console import Console, print_table
from rattle.cli.options import parse
from rattle.data.registry import SOURCES
from rattle.errors import RattleError
from rattle.paper import cost, tables, writer
from rattle.paper.cells import lines
from rattle.paper.estimate import Cost, estimate
from rattle.paper.plan import Plan, States, plan
from rattle.paper.protocols import PROTOCOLS, Evaluator, Protocol
from rattle.paper.scales import SCALES, Scale
from rattle.report.page import duration
from rattle.runs.progress import ProgressOnly
from rattle.training.loop import fit
from rattle.training.sweep import Job, Slurm, pending, run_here, submit

LONG = 600.0  # seconds; what takes longer is asked about


@dataclass(frozen=True)
class Options:
    """Reproduce a table of the paper: plan its runs and their cost here, train what is missing, attack it as the table
    does, and print ours beside the paper's. Given again, the same command goes on where it stopped; finished runs serve
    every table of the same scale. Tables are also written to OUT as Markdown, LaTeX, HTML and JSON."""

    table: Annotated[str, tyro.conf.Positional] = ""  # its number, 1 to 8
    scale: Literal["full", "small", "tiny"] = "full"  # as published | slim networks, hours | digits, minutes
    seeds: tuple[int, ...] = ()  # one run of each row for each; 0 1 2, at scale tiny 0, when not given
    protocols: tuple[Protocol, ...] = PROTOCOLS  # checkpoint chosen on validation images | on the test set, Appendix B
    launcher: Literal["local", "slurm"] = "local"
    jobs: int = 1  # runs at once, with launcher local
    out: str = "runs/paper"  # folder of the tables; the runs are in OUT/SCALE
    data: tuple[str, ...] = ()  # other sources: cifar10=FILE.npz, or one FILE for every dataset
    data_root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    epochs: int | None = None  # of every run; the scale's when not given
    train_size: int | None = None  # training images; the scale's when not given
    n: int | None = None  # test images that are attacked; the scale's when not given
    autoattack_n: int | None = None  # of them, by AutoAttack
    format: writer.Format = "terminal"  # of what is printed
    plan: bool = False  # print the plan and its cost, and stop
    figures: bool = False  # also draw Figures 2 and 3 for the table's runs: rattle landscape
    yes: bool = False  # do not ask before more than ten minutes of work
    slurm: Slurm = field(default_factory=Slurm)


def main(args: list[str]) -> None:
    options = parse(Options, args, "paper")
    number, scale, out, console = number_of(options.table), scale_of(options), Path(options.out), Console()
    if not options.protocols:
        raise RattleError("--protocols needs at least one of honest and paper")
    title = f"Table {number}, scale {scale.name}: {tables.table(number).title}"
    stem = f"table-{number}-{scale.name}"
    if number == 6:
        print_cost(options, scale, out, title, stem, console)
        return
    planned = plan(number, scale, options.seeds or scale.seeds, out)
    states = planned.states()
    left = estimate(planned, states, options.protocols, console)
    print_plan(planned, states, left, console)
    if options.plan:
        return
    agree(left.seconds, f"Table {number} at scale {scale.name}", options.yes)
    failed = train(planned, options, out, console)
    if failed is None:
        return
    measured = lines(planned, Evaluator(scale, console), options.protocols, failed)
    finish(writer.printed_table(planned, title, measured), options, out, stem, console)
    figures(planned, options.figures, console)
    if failed:
        each = "; ".join(f"{name}: {words}" for name, words in failed.items())
        raise RattleError(f"{len(failed)} of {len(planned.jobs)} runs failed, the same command retries them: {each}")


def number_of(text: str) -> int:
    if not text:
        raise RattleError("say which table, 1 to 8: rattle paper 1 --scale tiny")
    if not text.isascii() or not text.isdecimal():
        raise RattleError(f"a table is given by its number, 1 to 8, got {text!r}")
    return tables.table(int(text)).number


def scale_of(options: Options) -> Scale:
    """The scale with what the options change in it."""
    given = {"epochs": options.epochs, "train_size": options.train_size, "n": options.n, "root": options.data_root}
    given |= {"autoattack_n": options.autoattack_n, "sources": sources(options.data)}
    return replace(SCALES[options.scale], **{name: value for name, value in given.items() if value is not None})


def sources(words: Sequence[str]) -> dict[str, str]:
    """{dataset: file}; a word without a sign is for every dataset."""
    found: dict[str, str] = {}
    for word in words:
        name, sign, file = word.partition("=")
        if sign and name in SOURCES:
            found[name] = file
        else:
            found = dict.fromkeys(SOURCES, word) | found
    return found


def print_plan(planned: Plan, states: States, left: Cost, console: Console) -> None:
    """Every run, its state and its cost."""
    rows = []
    for key, job in planned.jobs.items():
        seconds = left.training.get(job.folder.name)
        rows.append([job.folder.name, states[key], str(job.recipe.epochs), duration(seconds) if seconds else "-"])
    print_table(
        ["run", "state", "epochs", "training, about"], rows, title=f"Table {planned.number}: the plan", stderr=True
    )
    training = duration(sum(left.training.values()))
    console.log(f"about {training} of training and {duration(left.evaluation)} of attacks are left on this machine")
    if left.bytes > 1e9:
        console.log(f"the kept checkpoints will take about {left.bytes / 1e9:.0f} GB")


def agree(seconds: float, what: str, yes: bool) -> None:
    """Ask before long work; where there is nobody to ask, refuse."""
    if yes or seconds <= LONG:
        return
    sentence = f"{what} would take about {duration(seconds)} on this machine"
    if not sys.stdin.isatty():
        raise RattleError(f"{sentence}: give --yes to start it")
    sys.stderr.write(f"{sentence}. Start? [y/N] ")  # stdout may be a file that wants the table
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RattleError("nothing was started")


def train(planned: Plan, options: Options, out: Path, console: Console) -> dict[str, str] | None:
    """Train what is missing; what failed, and why. None when SLURM has the runs now."""
    jobs = [job for job in planned.jobs.values() if not job.run.divergence]
    todo = pending(jobs, ProgressOnly(console))
    place = out / planned.scale.name
    if options.launcher == "slurm" and todo:
        submit(todo, options.slurm, place, console, Console)
        print(f"{len(todo)} of {len(jobs)} runs are in the queue; the same command again prints the table")
        return None
    alone = options.jobs == 1
    failed = one_by_one(todo, console) if alone else run_here(todo, at_once=options.jobs, out=place, console=console)
    diverged = {job.folder.name for job in todo if job.run.divergence}
    return {name: words for name, words in failed.items() if name not in diverged}


def one_by_one(todo: Sequence[Job], console: Console) -> dict[str, str]:
    """Train in this process; a run that fails does not stop the others."""
    failed = {}
    for i, job in enumerate(todo):
        console.log(f"{job.folder.name}: training, {i + 1} of {len(todo)}")
        try:
            fit(job.recipe, job.folder, resume=True, console=ProgressOnly(console))
        except RattleError as reason:
            failed[job.folder.name] = str(reason)
    return failed


def print_cost(options: Options, scale: Scale, out: Path, title: str, stem: str, console: Console) -> None:
    """Table 6: nothing is trained; steps are timed."""
    path = out / scale.name / "cost.json"
    seconds = 0.0 if path.exists() else cost.estimated_seconds(scale)
    console.log(f"Table 6 times single steps of {scale.cost.model}: about {duration(seconds)} are left")
    if options.plan:
        return
    agree(seconds, f"Table 6 at scale {scale.name}", options.yes)
    finish(cost.printed_table(scale, cost.measure(scale, path, console), title), options, out, stem, console)


def finish(found: writer.PrintedTable, options: Options, out: Path, stem: str, console: Console) -> None:
    """Print the table and write it in every format."""
    paths = writer.write(found, out, stem)
    show(found, options.format)
    console.log("written: " + ", ".join(map(str, paths)))


def show(found: writer.PrintedTable, form: writer.Format) -> None:
    """On stdout."""
    if form != "terminal":
        print(writer.WRITERS[form][0](found), end="")
        return
    print_table(found.head, [[*row.labels, *row.cells] for row in found.rows], title=found.title)
    print("\n".join(found.notes))


def figures(planned: Plan, draw: bool, console: Console) -> None:
    """Figures 2 and 3: the landscapes of a baseline and of the method on it, or the command that draws them."""
    second = [e for e in planned.entries if "-2nd" in (e.row.recipe or "") and "eta" not in e.key]  # the paper's eta
    for pair in dict.fromkeys((entry.baseline or "", entry.key) for entry in second):
        jobs = [planned.jobs[key, planned.seeds[0]] for key in pair]
        if any(job.run.divergence or job.state != "finished" for job in jobs):
            continue
        folders = [str(job.folder) for job in jobs]
        if draw:
            for path in compute_landscapes(folders, console=console):
                print(path)
        else:
            console.log(f"Figures 2 and 3 for these two: rattle landscape {' '.join(folders)}")
