"""rattle paper: a table of the paper, trained, attacked and printed beside the published numbers."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rattle.cli.console import Console, print_table, say
from rattle.cli.options import given, parse
from rattle.data.sources import SOURCES
from rattle.errors import RattleError
from rattle.paper.tables import table
from rattle.training.slurm import Slurm, submit

if TYPE_CHECKING:
    from rattle.paper.blocks import PrintedTable
    from rattle.paper.plan import Plan, States
    from rattle.paper.scales import Scale


@dataclass(frozen=True)
class Options:
    """Reproduce a table of the paper: plan its runs and their cost, train what is missing, attack it as the table
    does, and print ours beside the paper's. Given again, the same command resumes where it stopped; finished runs serve
    every table of the same scale. Tables are also written to OUT as Markdown, LaTeX, HTML and JSON."""

    table: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]  # its number, 1 to 8
    scale: Literal["full", "small", "tiny"] = "full"  # as published | slim networks, hours | digits, minutes
    seeds: tuple[int, ...] = ()  # one run of each row for each; 0 1 2, at scale tiny 0, when not given
    # checkpoint chosen on validation images | on the test set, Appendix B
    protocols: tuple[Literal["honest", "paper"], ...] = ("honest", "paper")
    launcher: Literal["local", "slurm"] = "local"  # where the runs are trained: here, or each as a job of SLURM
    jobs: int = 1  # runs at once, with launcher local
    out: str = "runs/paper"  # folder of the tables; the runs are in OUT/SCALE
    data: tuple[str, ...] = ()  # other sources: cifar10=FILE.npz, or one FILE for every dataset
    extra: str | None = None  # FILE.npz of generated images, for the row that was trained on such: HAT(DDPM), Table 8
    data_root: str | None = None  # where datasets live; RATTLE_DATA, or ./data, when not given
    epochs: int | None = None  # of every run; the scale's when not given
    train_size: int | None = None  # training images; the scale's when not given
    n: int | None = None  # test images that are attacked; the scale's when not given
    autoattack_n: int | None = None  # test images that AutoAttack attacks; the scale's when not given
    format: Literal["terminal", "markdown", "latex", "html", "json"] = "terminal"  # format of the printed table
    plan: bool = False  # print the plan and its cost, and stop
    yes: bool = False  # train at scale small or full, which takes hours or more
    slurm: Slurm = field(default_factory=Slurm)


def main(args: list[str]) -> None:
    options = parse(Options, args, "paper")
    number = options.table
    table(number)  # raises RattleError if there is none
    if not options.protocols:
        raise RattleError("--protocols needs at least one of honest and paper")
    from rattle.paper import writer
    from rattle.paper.cells import compare_rows
    from rattle.paper.estimate import estimate
    from rattle.paper.plan import plan_table
    from rattle.paper.protocols import Evaluator
    from rattle.paper.run import train_jobs
    from rattle.runs.progress import ProgressOnly
    from rattle.training.sweep import check_jobs, pending, refuse_failed

    check_jobs(options.jobs)
    scale, console = scale_of(options), Console()
    title = f"Table {number} of the paper, run at scale {scale.name}"
    if number == 6:
        print_cost(options, scale, title, console)
        return
    out = Path(options.out)
    planned = plan_table(number, scale, options.seeds or scale.seeds, out)
    states = planned.states()
    seconds, disk = estimate(planned, states)
    print_plan(planned, states)
    if seconds:
        cost = f"about {seconds / 3600:,.0f} GPU-hours on one A100 and {disk / 1e9:,.0f} GB of checkpoints"
        console.log(f"left to train: {cost}, within a factor of 2")
    else:
        console.log("nothing is left to train")
    if options.plan:
        return
    if seconds:
        confirm(options)
        for data in {job.recipe.data for job in planned.jobs.values()}:
            data.load()  # refuse missing data before anything is trained
    wanted = [job for job in planned.jobs.values() if not job.run.divergence]  # one that diverged is not tried again
    todo, runs = pending(wanted, ProgressOnly(console)), out / scale.name
    if options.launcher == "slurm" and todo:
        submit(todo, options.slurm, runs, console, Console)
        say(f"{len(todo)} of {len(wanted)} runs are in the queue; the same command again prints the table")
        return
    failed = train_jobs(todo, at_once=options.jobs, out=runs, console=console)
    results = compare_rows(planned, Evaluator(scale, console), options.protocols, failed)
    print_paper_table(writer.printed_table(planned, title, results), number, options, console)
    refuse_failed(failed, list(planned.jobs.values()))


def scale_of(options: Options) -> Scale:
    """The scale with what the options change in it."""
    from rattle.paper.scales import SCALES

    if options.extra is not None and not Path(options.extra).is_file():
        raise RattleError(f"there is no file {options.extra} of extra images")
    scale, files = SCALES[options.scale], {}
    for word in options.data:
        name, sign, file = word.partition("=")
        if not sign or name not in SOURCES:
            files = dict.fromkeys(SOURCES, word) | files
        elif scale.dataset and scale.dataset != name:
            only = f"{scale.dataset} stand in for {name}"
            raise RattleError(f"--data {word} does nothing at scale {scale.name}, where {only}")
        else:
            files[name] = file
    changes = given(options, "epochs", "train_size", "n", "autoattack_n", "extra")
    return replace(scale, sources=files, root=options.data_root, **changes)


def print_plan(planned: Plan, states: States) -> None:
    """Every run with its state."""
    from rattle.training.teachers import trained_first

    rows = []
    for key in dict.fromkeys(key for key, _ in planned.jobs):
        state = " ".join(states[key, seed] for seed in planned.seeds)
        job = planned.jobs[key, planned.seeds[0]]
        first = ", ".join(trained_first(job.recipe, job.run))
        name = key.removeprefix("recipe=") + (f" (teachers first: {first})" if first else "")
        rows.append([name, " ".join(map(str, planned.seeds)), state])
    epochs = " or ".join(str(n) for n in sorted({job.recipe.epochs for job in planned.jobs.values()}))
    title = f"Table {planned.number}: the plan, {len(planned.jobs)} runs of {epochs} epochs"
    print_table(["run", "seeds", "state"], rows, title=title, stderr=True)


def confirm(options: Options) -> None:
    """Refuse long work, which scale tiny is not, without the user's word."""
    if not options.yes and options.scale != "tiny":
        raise RattleError(f"Table {options.table} at scale {options.scale} takes hours or more: give --yes to start it")


def print_cost(options: Options, scale: Scale, title: str, console: Console) -> None:
    """Table 6: nothing is trained; steps are timed."""
    from rattle.paper import cost

    console.log(f"Table 6 times single steps of {scale.cost.model}")
    if options.plan:
        return
    confirm(options)
    print_paper_table(cost.cost_table(scale, cost.measure_steps(scale.cost, console), title), 6, options, console)


def print_paper_table(printed: PrintedTable, number: int, options: Options, console: Console) -> None:
    """Print the table, in the terminal block by block, and write it in every format."""
    from rattle.paper import writer

    paths = writer.write(printed, Path(options.out), f"table-{number}-{options.scale}")
    if options.format == "terminal":
        width = shutil.get_terminal_size((120, 24)).columns
        say(printed.title)
        for block in printed.blocks:
            say(f"\n{textwrap.fill(block.caption, width)}")
            print_table(block.head, block.rows, left=block.left)
        for note in printed.notes:
            say(textwrap.fill(note, width, initial_indent="- ", subsequent_indent="  "))
    else:
        say(writer.WRITERS[options.format][0](printed), end="")
    console.log("written: " + ", ".join(map(str, paths)))
