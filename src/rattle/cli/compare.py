"""rattle compare: evaluated models side by side on the same images, with paired tests."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from rattle.cli.console import print_table, say
from rattle.cli.options import RunPaths, check_exists, parse
from rattle.cli.table import read_models
from rattle.errors import RattleError
from rattle.evaluation.results import share
from rattle.evaluation.samples import difference
from rattle.report.compare import ALL_PAIRS, compare_methods, compare_runs, has_seeds
from rattle.report.naming import number, p_value, title_of
from rattle.report.run_data import RunData, Runs, baseline_first
from rattle.report.sections import beyond
from rattle.report.significance import PairedTest, Tests
from rattle.report.tables import percent
from rattle.runs.io import Plain

COMPARE_NOTE = (
    "Accuracy in % and difference in points, each with its own 95 % interval; p of McNemar's test on the same images, "
    "after Holm's adjustment (tests shown: {n}). Networks are compared, not methods: that takes several seeds."
)
OVER_SEEDS = (
    "Accuracy in %, mean ± std over seeds; difference in points with its 95 % interval where both have "
    "the same seeds, which are paired; p after Holm's adjustment (tests shown: {n})."
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare evaluated models, trained here or not: each attack that two of them share, on the same images. Runs that
    differ in their seed alone are one method, whose seeds are paired with those of another."""

    models: RunPaths  # run folders, or folders of results (WEIGHTS-results)
    baseline: str = ""  # one of the folders: compare the others with it alone, instead of every pair
    json: bool = False  # print the comparison as one JSON object on stdout, and nothing else


def main(args: list[str]) -> None:
    options = parse(Options, args, "compare")
    check_exists(*options.models)
    folders = baseline_first(options.models, options.baseline)
    given = {Path(folder).resolve(): folder for folder in folders}  # none twice
    if len(given) < 2:
        raise RattleError("name two different folders or more: rattle compare runs/a plain.pt-results")
    runs = read_models(list(given.values()))
    tests, refused = tests_of(runs, runs[0] if options.baseline else None)
    if not tests:
        why = "; ".join(refused) or "they share no attack, and `rattle evaluate` has to run one on both"
        raise RattleError(f"nothing can be compared: {why}")
    if options.json:
        print(json.dumps(comparison_record(runs, tests, refused)))
        return
    print_tests(tests, refused)
    print_compared_classes(runs)
    if not options.baseline and len({test.second for test in tests}) >= ALL_PAIRS:  # all pairs of so many have fewer
        say(f"More than {ALL_PAIRS} models are compared with the first alone.")


def tests_of(runs: Runs, baseline: RunData | None) -> Tests:
    """Of methods where one has several seeds, else of networks."""
    return (compare_methods if has_seeds(runs) else compare_runs)(runs, baseline)


def print_tests(tests: Sequence[PairedTest], refused: Sequence[str]) -> None:
    """Every pair, what was not compared, and how to read it."""
    for _, pair in groupby(tests, key=lambda test: (test.first, test.second)):
        print_pair(list(pair))
    if any(test.counts is None for test in tests):
        say("A random model's accuracies are means over fresh draws; their p is Student's, over images and draws.")
    for sentence in refused:
        say(f"not compared: {sentence}")
    note = OVER_SEEDS if any(test.seeds > 1 for test in tests) else COMPARE_NOTE
    say(note.format(n=len(tests)))


def print_pair(tests: Sequence[PairedTest]) -> None:
    """A table of one pair, a row for each column, and a sentence about the strongest attack that they share."""
    print_table(
        ["", "n", tests[0].first, tests[0].second, "difference", "p, Holm"], [paired_row(test) for test in tests]
    )
    say(f"{min(tests, key=by_strength).sentence}.\n")


def print_compared_classes(runs: Sequence[RunData]) -> None:
    """A table of each model's worst class and calibration error, under each attack; nothing where all is unknown."""
    rows = []
    for run in runs:
        for found in beyond(run):
            cells, worst, known = ["-", "-", "-"], found["worst"], found["calibration"]
            if worst:
                cells[:2] = [worst.interval.around(worst.accuracy), f"{100 * worst.best:.1f}"]
            if known:
                cells[2] = known.interval.around(known.error)
            rows.append([run.label, title_of(found["column"]), f"{found['n']:,}", *cells])
    if rows:
        print_table(["", "", "n", "worst class", "best class", "calibration error"], rows, left=2)


def by_strength(test: PairedTest) -> tuple[bool, float]:
    """Sorts AutoAttack first, by which models are usually compared, then by the accuracy that an attack leaves."""
    return test.attack != "autoattack", sum(sum(sample.accuracies) for sample in test.samples)


def paired_row(test: PairedTest) -> list[str]:
    if test.seeds > 1:
        accuracies = [sample.summary.percent() for sample in test.samples]
        paired = difference(test.samples[1], test.samples[0])
        interval = f" {paired.interval.percent('+.1f')}" if paired and paired.n == test.seeds else ""
        change = f"{100 * test.difference:+.1f}{interval}"
    else:
        accuracies = [percent(sample.flags[0], sample.error) for sample in test.samples]
        change, low, high = (number(100 * x) for x in (test.difference, test.interval.low, test.interval.high))
        change = f"{'+' if test.difference > 0 else ''}{change} [{low}, {high}]"
    return [title_of(test.attack), f"{test.samples[0].n:,}", *accuracies, change, p_value(test.p_adjusted)]


def comparison_record(runs: Runs, tests: Sequence[PairedTest], refused: Sequence[str]) -> Plain:
    """What `--json` prints: accuracies and differences as shares of 1."""
    models = []
    for run in runs:
        model = {"label": run.label, "folder": str(run.folder), "trained_here": not run.external}
        models.append(model | {"beyond": [beyond_to_plain(found) for found in beyond(run)]})
    return {"models": models, "tests": [pair_to_plain(test) for test in tests], "not_compared": list(refused)}


def beyond_to_plain(found: Plain) -> Plain:
    """A row of `print_beyond`; what is unknown is null."""
    worst, known = found["worst"], found["calibration"]
    more = {"worst_class": worst and worst.to_plain(), "calibration": known and known.to_plain()}
    return {"attack": found["column"], "n": found["n"], **more}


def pair_to_plain(test: PairedTest) -> Plain:
    """One test; over seeds, accuracies are those of each."""
    first, second = test.samples
    plain = {
        "first": test.first,
        "second": test.second,
        "attack": test.attack,
        "better": test.better[0] if test.better else None,
        "difference": test.difference,
        "p_adjusted": test.p_adjusted,
    }
    if test.seeds > 1:
        paired = difference(second, first)
        return plain | {
            "first_seeds": first.seeds,
            "first_accuracies": first.accuracies,
            "second_seeds": second.seeds,
            "second_accuracies": second.accuracies,
            "difference_interval": list(paired.interval) if paired else None,
            "p": test.p,
            "n": first.n,
        }
    return plain | {
        **share("first", first.flags[0], first.error),
        **share("second", second.flags[0], second.error),
        "difference_interval": list(test.interval),
        **(asdict(test.counts) if test.counts else {"n": first.n, "p": test.p}),
    }
