"""rattle paper: a table of the paper, trained, attacked and printed beside the published numbers."""

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rattle.analysis.prepare import compute_landscapes
from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse
from rattle.data.sources import SOURCES
from rattle.errors import RattleError
from rattle.paper import cost, writer
from rattle.paper.blocks import Block, PrintedTable
from rattle.paper.cells import compare_rows
from rattle.paper.estimate import Cost, estimate
from rattle.paper.plan import Plan, States, plan
from rattle.paper.protocols import PROTOCOLS, Evaluator, Protocol
from rattle.paper.run import landscape_pairs, train, unfinished
from rattle.paper.scales import SCALES, Scale
from rattle.paper.tables import table
from rattle.training.slurm import Slurm, submit
from rattle.training.sweep import check_jobs
from rattle.training.teachers import trained_first

GAP = 2  # blanks between the columns of a table
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
    extra: str | None = None  # FILE.npz of generated images, for the row that was trained on such: HAT(DDPM), Table 8
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


def read(args: list[str]) -> tuple[Options, int, Scale, Plan | None]:
    """The options, the table's number, the scale, and the plan; Table 6 has none."""
    options = parse(Options, args, "paper")
    number, scale = number_of(options.table), scale_of(options)
    if not options.protocols:
        raise RattleError("--protocols needs at least one of honest and paper")
    check_jobs(options.jobs)
    planned = None if number == 6 else plan(number, scale, options.seeds or scale.seeds, Path(options.out))
    return options, number, scale, planned


def main(args: list[str]) -> None:
    options, number, scale, planned = read(args)
    out, console = Path(options.out), Console()
    if planned is None:
        print_cost(options, scale, console)
        return
    states = planned.states()
    left = estimate(planned, states, options.protocols, console, assume=options.plan)
    print_plan(planned, states, left, console)
    if options.plan:
        return
    confirm(left, f"Table {number} at scale {scale.name}", options.yes)
    todo, runs = unfinished(planned, console), out / scale.name
    if options.launcher == "slurm" and todo:
        submit(todo, options.slurm, runs, console, Console)
        waiting = sum(not job.run.divergence for job in planned.jobs.values())
        say(f"{len(todo)} of {waiting} runs are in the queue; the same command again prints the table")
        return
    failed = train(todo, at_once=options.jobs, out=runs, console=console)
    rows = compare_rows(planned, Evaluator(scale, console), options.protocols, failed)
    print_result(writer.printed_table(planned, title_of(number, scale), rows), number, options, console)
    print_landscapes(planned, options.figures, console)
    if failed:
        each = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise RattleError(f"{len(failed)} of {len(planned.jobs)} runs failed, the same command retries them: {each}")


def title_of(number: int, scale: Scale) -> str:
    """Whose table it is and what it was run at; data and networks are named by the table's blocks."""
    return f"Table {number} of the paper, run at scale {scale.name}"


def number_of(text: str) -> int:
    if not text:
        raise RattleError("say which table, 1 to 8: rattle paper 1 --scale tiny")
    if not text.isascii() or not text.isdecimal():
        raise RattleError(f"a table is given by its number, 1 to 8, got {text!r}")
    return table(int(text)).number


def scale_of(options: Options) -> Scale:
    """The scale with what the options change in it."""
    given = {"epochs": options.epochs, "train_size": options.train_size, "n": options.n, "root": options.data_root}
    given |= {"autoattack_n": options.autoattack_n, "sources": sources(options.data), "extra": options.extra}
    if options.extra is not None and not Path(options.extra).is_file():
        raise RattleError(f"there is no file {options.extra} of extra images")
    for word in options.data:
        name, sign, _ = word.partition("=")
        if sign and name in SOURCES and name != (only := SCALES[options.scale].dataset or name):
            raise RattleError(f"--data {word} does nothing at scale {options.scale}, where {only} stand in for {name}")
    return replace(SCALES[options.scale], **{name: value for name, value in given.items() if value is not None})


def sources(words: Sequence[str]) -> dict[str, str]:
    """{dataset: file}; a file without `NAME=` is for every dataset."""
    found: dict[str, str] = {}
    for word in words:
        name, sign, file = word.partition("=")
        if sign and name in SOURCES:
            found[name] = file
        else:
            found = dict.fromkeys(SOURCES, word) | found
    return found


def print_plan(planned: Plan, states: States, left: Cost, console: Console) -> None:
    """Every run with its state, and what all of it costs."""
    rows = []
    for key in dict.fromkeys(key for key, _ in planned.jobs):
        count = Counter(states[key, seed] for seed in planned.seeds)
        state = next(iter(count)) if len(count) == 1 else ", ".join(f"{n} {one}" for one, n in count.items())
        job = planned.jobs[key, planned.seeds[0]]
        first = ", ".join(trained_first(job.recipe, job.run))
        name = key.removeprefix("recipe=") + (f" (teachers first: {first})" if first else "")
        rows.append([name, " ".join(map(str, planned.seeds)), state])
    epochs = " or ".join(str(n) for n in sorted({job.recipe.epochs for job in planned.jobs.values()}))
    title = f"Table {planned.number}: the plan, {len(planned.jobs)} runs of {epochs} epochs"
    print_table(["run", "seeds", "state"], rows, title=title, stderr=True, close=True)
    if not left.seconds:
        console.log("nothing is left to train or to attack")
        return
    disk = f"; the checkpoints will take about {left.bytes / 1e9:.0f} GB" if left.bytes > 1e9 else ""
    console.log(f"{left}, training and attacks together{disk}")
    if left.device == "a100":
        console.log("there is no GPU here: these are the paper's seconds (Table 6), scaled to each network and method")


def confirm(left: Cost, what: str, yes: bool) -> None:
    """Ask before long work; refuse it where nobody can be asked."""
    quick = left.seconds <= LONG and (left.device != "a100" or not left.seconds)  # an A100's minutes are a CPU's days
    if yes or quick:
        return
    sentence = f"{what} would take {left}" + (", and there is no GPU here" if left.device == "a100" else "")
    if not sys.stdin.isatty():
        raise RattleError(f"{sentence}: give --yes to start it")
    sys.stderr.write(f"{sentence}. Start? [y/N] ")  # stdout may be redirected to a file for the table
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RattleError("nothing was started")


def print_cost(options: Options, scale: Scale, console: Console) -> None:
    """Table 6: nothing is trained; steps are timed."""
    left = Cost(seconds=cost.estimated_seconds(scale.cost), bytes=0, device="cpu")
    console.log(f"Table 6 times single steps of {scale.cost.model}: {left}")
    if options.plan:
        return
    confirm(left, f"Table 6 at scale {scale.name}", options.yes)
    measured = cost.measure(scale.cost, console)
    print_result(cost.printed_table(scale, measured, title_of(6, scale)), 6, options, console)


def print_result(printed: PrintedTable, number: int, options: Options, console: Console) -> None:
    """Print the table and write it in every format."""
    paths = writer.write(printed, Path(options.out), f"table-{number}-{options.scale}")
    if options.format == "terminal":
        print_blocks(printed)
    else:
        say(writer.WRITERS[options.format][0](printed), end="")
    console.log("written: " + ", ".join(map(str, paths)))


def print_blocks(printed: PrintedTable) -> None:
    """The table in the terminal's width, 120 columns where there is none; of a block that is wider, some columns at a
    time."""
    width = shutil.get_terminal_size((120, 24)).columns
    say(printed.title)
    for block in printed.blocks:
        say(f"\n{textwrap.fill(block.caption, width)}")
        for columns in columns_that_fit(block, width):
            rows = [[*row.labels, *(row.cells[i] for i in columns)] for row in block.rows]
            head, left = [*block.labels, *(block.columns[i] for i in columns)], len(block.labels)
            print_table(head, rows, left=left, close=True)
    say("\n".join(textwrap.fill(note, width, initial_indent="- ", subsequent_indent="  ") for note in printed.notes))


def columns_that_fit(block: Block, width: int) -> list[list[int]]:
    """The columns of numbers in groups that fit the width with the labels beside them; at least one a group."""
    wide = [max(map(len, column)) + GAP for column in zip(block.head, *block.texts, strict=True)]
    labels = sum(wide[: len(block.labels)])
    groups, used = [], width
    for i, one in enumerate(wide[len(block.labels) :]):
        if used + one > width:
            groups, used = [*groups, []], labels
        groups[-1].append(i)
        used += one
    return groups


def print_landscapes(planned: Plan, draw: bool, console: Console) -> None:
    """Figures 2 and 3, or the command that draws them."""
    for folders in landscape_pairs(planned):
        if draw:
            say("\n".join(map(str, compute_landscapes(folders, console=console))))
        else:
            console.log(f"Figures 2 and 3 for these two: rattle landscape {' '.join(folders)}")
